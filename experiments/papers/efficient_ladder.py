"""EfficientRollout (arXiv 2606.18967): its ladder, a rule that raises and lowers the draft length during a training."""

from pathlib import Path
from typing import Any

import numpy as np

from analysis.report import Line, Section, curves
from das.budget import TargetPass
from das.budget.toggle import Ladder
from experiments.simulate.profile_engine import Profile, constant_rate

STEPS = 100  # training steps (paper)
CYCLES = 1000  # speculation cycles per step; any large number does, because the ladder only uses shares


def known_rates(data: dict[str, Any], name: str) -> list[float]:
    """Return the acceptance rates at the points of a model's training at which the paper prints tau, in order.

    Each rate, taken to be equal at all positions of a draft, gives the printed tau (tokens per cycle). The first value
    is printed for Llama only. The other models are assumed to start with it, too.
    """
    start, end = data["llama_tau_start_end"]
    rates = [constant_rate(start, data["start"]).rates[0]]
    moves = data["transitions"][name]
    for move in moves:
        rates.append(constant_rate(move["tau_before"], move["from"]).rates[0])
        if move["tau_after"] is not None:
            rates.append(constant_rate(move["tau_after"], move["to"]).rates[0])
    return rates if moves else [*rates, constant_rate(end, data["start"]).rates[0]]


def rising(rates: list[float]) -> np.ndarray:
    """Return the acceptance at every step: interpolated between `rates`, which are taken to be equally far apart in
    time."""
    return np.interp(np.linspace(0, 1, STEPS), np.linspace(0, 1, len(rates)), rates)


def climb(data: dict[str, Any], rates: np.ndarray) -> tuple[list[int], list[dict[str, float]]]:
    """Return the ladder's draft length at every step, and its moves. rates: acceptance at every step.

    A move has the step, the draft lengths `from` and `to`, and tau (tokens per cycle) `before` and `after`.
    """
    ladder = Ladder(data["gammas"], data["alpha_up"], data["alpha_down"], data["patience_steps"])
    gammas, taus = [], []
    for rate in rates.tolist():
        gamma = ladder.rungs[ladder.rung]
        tau = Profile((rate,) * gamma).tau
        accepted = round((tau - 1) * CYCLES)
        ladder.observe_pass(TargetPass(CYCLES, gamma * CYCLES, accepted, 0, 1.0))
        ladder.end_step()
        gammas.append(gamma)
        taus.append(tau)
    moves = [
        {"step": i, "from": gammas[i - 1], "to": gammas[i], "before": taus[i - 1], "after": taus[i]}
        for i in range(1, STEPS)
        if gammas[i] != gammas[i - 1]
    ]
    return gammas, moves


def traces(published: dict[str, Any], folder: Path) -> Section:
    """Make the section about the moves of the ladder during a training."""
    data = published["er_ladder"]["data"]
    lines, drawn = [], {}
    for name, observed in data["transitions"].items():
        gammas, moves = climb(data, rising(known_rates(data, name)))
        drawn[name] = np.arange(1, STEPS + 1), gammas
        taus = {move["from"]: (move["tau_before"], move["tau_after"]) for move in observed}
        for move in moves:
            before, after = taus.get(int(move["from"]), ("no such move", ""))
            lines.append(
                Line(
                    f"{name}, {move['from']} to {move['to']}: tau before, after",
                    "",
                    f"{before}, {after or 'not printed'}",
                    f"{move['before']:.2f}, {move['after']:.2f} (step {move['step']})",
                )
            )
        ends = " > ".join(map(str, [data["start"], *(move["to"] for move in observed)]))
        ours = " > ".join(map(str, [data["start"], *(int(move["to"]) for move in moves)]))
        lines.append(Line(f"{name}, draft lengths over training", "", ends, ours))
    figure = curves(folder / "er_ladder.png", drawn, "training step", "draft length (tokens)", "Ladder")
    return Section(
        "Ladder of draft lengths",
        f"This project's ladder (das/budget/toggle.py) for {STEPS} steps. Acceptance passes through the values that "
        "the published tau imply, which are taken to be equally far apart in time. The paper does not print when they "
        "were reached, so the moves can be compared, but not their steps.",
        lines,
        "The moves, and tau before and after them, are the observed ones. That checks the rule and the code that "
        "follows it. It does not check acceptance, which is put in from the same published values.",
        [figure],
    )
