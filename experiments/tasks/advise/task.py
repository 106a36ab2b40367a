"""task=advise: estimate from recorded rollouts whether speculation pays, in under a minute, and write a page.

result.json: arms.NAME.{rollout_s, low_s, high_s, step_s, rollout_change, low_change, high_change, step_change,
tokens_per_pass}, chosen, changes_by_step, change_over_visits, pays_up_to, pays_up_to_dearer, advice, speedup_by_live,
break_even, seconds.
advice.html: the page, in one file.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from analysis import advice_page as page
from das.drafter import HistoryDrafter
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.config import RunConfig
from experiments.simulate.arms import Arm
from experiments.simulate.cluster import Step
from experiments.simulate.scopes import OwnText
from experiments.simulate.text_engine import TextEngine
from experiments.simulate.times import Form
from experiments.tasks.advise.case import Case, build

WORTH = 0.03  # a smaller gain of rollout time is not worth a change of settings
LIVE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)  # requests per engine that are considered
ASKED = (16, 64, 256)  # requests per engine of which the break-even is printed
# Throughput that vLLM's flag for batch invariance costs, as shares: .13 measured with an 8B shape and 64 requests on an
# H200 (docs/benchmarks.md), .35 upstream with a 1.7B policy on an H20.
INVARIANCE_COST = (0.13, 0.35)
MARGINAL = {"name": "marginal", "tokens": 32, "ratio": 64.0}
FIXED = {"name": "fixed", "tokens": 16}
ARMS = {
    "ngram": Arm({"name": "fixed", "tokens": 4}, OwnText),
    "suffix-like": Arm(FIXED, partial(HistoryDrafter, min_prob=0.1)),
}
# Settings that may be advised: an arm, the epochs that its history keeps, and the overrides for run.py. The first is
# this project's default.
SETTINGS: dict[str, tuple[Arm, int, str]] = {
    "das": (Arm(MARGINAL), 0, "budget=marginal budget.tokens=32 drafter.window=16"),
    "das, window 2": (
        Arm(MARGINAL, partial(HistoryDrafter, window=2)),
        2,
        "budget=marginal budget.tokens=32 drafter.window=2",
    ),
    "das, fixed 16": (Arm(FIXED), 0, "budget=fixed budget.tokens=16 drafter.window=16"),
}


@dataclass(frozen=True)
class HistoryArms:
    """Simulated steps of the arms that draft by copying from earlier text, and of `none`, which drafts nothing."""

    expected: dict[str, list[Step]]  # arm -> steps
    dearer: dict[str, list[Step]]  # arm of SETTINGS -> steps if drafted tokens are dearer
    cheaper: list[Step]  # steps of the chosen arm if drafted tokens are cheaper
    chosen: str  # the best arm of SETTINGS
    engines: dict[str, TextEngine]  # arm of SETTINGS -> its engine after the last step


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Simulate every arm on a sample of the rollouts. Prints a table and one line of advice, and writes the page."""
    start = time.perf_counter()
    progress = Progress(0)
    case, facts = build(config.task)
    run_folder = RunFolder(Path(folder), config.resolved)  # after the input was checked: a failure leaves no folder
    for line in facts:
        progress.note(line)
    history = history_arms(case)
    none, expected = history.expected["none"], history.expected[history.chosen]
    rest = rest_share(config.task, none)
    arms = table(history, rest)
    gains = accepted_by_limit(history.engines["das, fixed 16"])
    curve = speedup_by_live(gains, case)
    even = [break_even(gains, case, live) for live in ASKED]
    facts += [
        f"{live} live requests: {needed:.2f} tokens a pass break even with {case.rival}, {emitted:.2f} were accepted"
        for live, needed, emitted in even
    ]
    for line in facts[-len(even) :]:
        progress.note(line)
    pays, pays_dearer = (pays_up_to([(live, gains[k]) for live, *gains in curve]) for k in (0, 1))
    settings = SETTINGS[history.chosen][2]
    text = advice(arms[history.chosen], settings, pays, pays_dearer, arms.get("stock"))
    by_step = [step.rollout_s / plain.rollout_s - 1 for step, plain in zip(expected, none, strict=True)]
    over_visits = change_over_visits(expected, none, config.task.visits)
    by_visit = visit_lines(history.chosen, by_step, config.task.visits, over_visits)
    facts += by_visit
    for line in [*by_visit, *map(arm_line, arms.items())]:
        progress.note(line)
    result = {
        "arms": arms,
        "chosen": history.chosen,
        "changes_by_step": by_step,
        "change_over_visits": over_visits,
        "pays_up_to": pays,
        "pays_up_to_dearer": pays_dearer,
        "advice": text,
        "speedup_by_live": curve,
        "break_even": even,
        "seconds": time.perf_counter() - start,
    }
    timelines = {name: history.expected[name][-1].timelines[0] for name in ("none", history.chosen)}
    page.write(Path(folder) / "advice.html", text, facts, arms, curve, timelines, case.scale, case.derived)
    progress.note(text)
    progress.note(f"page: {folder}/advice.html")
    progress.note(f"result: {run_folder.write_result(result)}")


def history_arms(case: Case) -> HistoryArms:
    """Simulate every arm that needs the text of the responses, and choose the best arm of SETTINGS."""
    expected = {"none": case.simulate(Arm()).steps}
    if case.stock is not None:
        expected["stock"] = case.as_stock().simulate(Arm()).steps
    expected |= {name: case.simulate(arm).steps for name, arm in ARMS.items()}
    dearer: dict[str, list[Step]] = {}
    engines: dict[str, TextEngine] = {}
    for name, (arm, window, _) in SETTINGS.items():
        if len(case.works) > window:  # otherwise the window forgets nothing, so the arm equals das
            expected[name], engine = case.simulate(arm)
            assert isinstance(engine, TextEngine)
            engines[name] = engine
            dearer[name] = case.dearer().simulate(arm).steps
    chosen = choose_setting({name: (seconds(expected[name]), seconds(dearer[name])) for name in dearer})
    cheaper = case.cheaper().simulate(SETTINGS[chosen][0]).steps
    return HistoryArms(expected, dearer, cheaper, chosen, engines)


def seconds(steps: Sequence[Step]) -> float:
    """Return the mean rollout time of the steps, in seconds."""
    return float(np.mean([step.rollout_s for step in steps]))


def change_over_visits(steps: Sequence[Step], plain: Sequence[Step], visits: float | None) -> float | None:
    """Return the change of rollout time in a training that visits each problem so often, 1.2 times for example: once,
    and a fifth of the problems twice. Later visits are taken to be like the last one that was simulated.

    steps: of the visits, the first one first. plain: the same without speculation. visits: None returns None.
    """
    if visits is None:
        return None
    drafted_s = plain_s = 0.0
    for visit in range(ceil(visits)):
        share, place = min(1.0, visits - visit), min(visit, len(steps) - 1)
        drafted_s += share * steps[place].rollout_s
        plain_s += share * plain[place].rollout_s
    return drafted_s / plain_s - 1


def visit_lines(chosen: str, changes: Sequence[float], visits: float | None, over_visits: float | None) -> list[str]:
    """Return what each visit of a problem brings, and what so many of them do together. chosen: the arm."""
    by_visit = ", ".join(f"{change:+.0%}" for change in changes)
    lines = [f"{chosen}, visit by visit of a problem: {by_visit} (the first has no history of it)"]
    if over_visits is not None:
        lines.append(f"your data are seen {visits:g} times: expect {over_visits:+.0%}")
    return lines


def arm_line(arm: tuple[str, Mapping[str, float]]) -> str:
    """Return an arm's name and row in a line."""
    name, row = arm
    return (
        f"{name:<14s} rollout {row['rollout_s']:8.2f} s ({row['rollout_change']:+.1%}{page.span(row)})  "
        f"step {row['step_s']:8.2f} s ({row['step_change']:+.1%})  "
        f"tokens/pass {row['tokens_per_pass']:.2f}"
    )


def choose_setting(times: Mapping[str, tuple[float, float]]) -> str:
    """Choose the setting with the least time, but keep `das` unless another setting is at least 1 % better.

    times: setting -> (expected rollout time, rollout time if drafted tokens are dearer). The sum of both is compared.
    """
    best = min(times, key=lambda name: sum(times[name]))
    return best if sum(times[best]) < 0.99 * sum(times["das"]) else "das"


def rest_share(task: Any, plain: Sequence[Step]) -> float:
    """Return the time of a step outside the rollout, divided by the time of the rollout without speculation."""
    if task.rest_s is not None:
        return float(task.rest_s) / seconds(plain)
    return 1 / 0.643 - 1  # rollouts are 64.3 % of a step in EfficientRollout's 7B run (58-71 %)


def table(history: HistoryArms, rest: float) -> dict[str, dict[str, float]]:
    """Return arm -> its row of the table (see `summary`). rest: see rest_share."""
    none = history.expected["none"]
    rows = {}
    for name, steps in history.expected.items():
        low, high = (history.cheaper, history.dearer[name]) if name == history.chosen else (steps, steps)
        rows[name] = summary(steps, low, high, none, rest)
    return rows


def summary(
    steps: Sequence[Step], low: Sequence[Step], high: Sequence[Step], plain: Sequence[Step], rest: float
) -> dict[str, float]:
    """Return the mean times of an arm's rollouts and steps, and their changes. The part of a step outside the rollout
    is taken to be as long as without speculation (Amdahl's law).

    low, high: the same steps if drafted tokens are cheaper and dearer. plain: the steps without speculation.
    rest: see rest_share.
    """
    plain_s, expected_s, low_s, high_s = (seconds(arm) for arm in (plain, steps, low, high))
    return {
        "rollout_s": expected_s,
        "low_s": low_s,
        "high_s": high_s,
        "step_s": expected_s + rest * plain_s,
        "rollout_change": expected_s / plain_s - 1,
        "low_change": low_s / plain_s - 1,
        "high_change": high_s / plain_s - 1,
        "step_change": (expected_s + rest * plain_s) / (plain_s + rest * plain_s) - 1,
        "tokens_per_pass": sum(s.tokens for s in steps) / sum(s.passes for s in steps),
    }


@dataclass(frozen=True)
class Accepted:
    """What drafts of at most 1, 2, ... tokens bring, for each limit: tokens that a request emits in a pass, and tokens
    that it verifies."""

    emitted: np.ndarray
    sent: np.ndarray


def accepted_by_limit(engine: TextEngine) -> Accepted:
    """Return what drafts brought in the engine's last step, for each limit of their length."""
    drafted = np.cumsum(engine.drafts_of[::-1])[::-1][1:] / engine.drafts_of.sum()  # share with at least j tokens
    accepted = np.cumsum(engine.accepts_of[::-1])[::-1][1:] / engine.accepts_of.sum()
    return Accepted(1 + np.cumsum(accepted), np.cumsum(drafted))


def _pass_seconds(form: Form, gains: Accepted, case: Case, live: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of a pass without drafts and with drafts, for each limit of `gains`."""
    b = np.full(len(gains.sent), float(live))
    context = b * float(np.mean(case.works[-1].lengths)) / 2
    return form.predict(b, b, context), form.predict(b, b * (1 + gains.sent), context) + case.draft_s * live


def speedup_by_live(gains: Accepted, case: Case) -> list[tuple[int, float, float]]:
    """Compute for each number of live requests how much faster decoding is with drafts.

    Returns (live requests of an engine, expected speedup, speedup if drafted tokens are dearer). Each speedup is
    that of the best draft limit. It assumes the lengths and the acceptance that drafts had in the last step.
    """

    def gain(form: Form, live: int) -> float:
        plain, with_drafts = _pass_seconds(form, gains, case, live)
        return float(np.max(gains.emitted * plain / with_drafts))

    return [(live, gain(case.form, live), gain(case.dearer().form, live)) for live in LIVE]


def break_even(gains: Accepted, case: Case, live: int) -> tuple[int, float, float]:
    """Return the live requests, the tokens that a request must emit in a pass so that drafts cost no time, and those
    that it emitted, at the best draft limit. Drafts are compared with vLLM as it comes, if its times are known."""
    plain, with_drafts = _pass_seconds(case.form, gains, case, live)
    rival = plain if case.stock is None else _pass_seconds(case.stock, gains, case, live)[0]
    best = int(np.argmax(gains.emitted / with_drafts))
    return live, float(with_drafts[best] / rival[best]), float(gains.emitted[best])


def pays_up_to(curve: Sequence[tuple[int, float]]) -> int:
    """Return the largest number of live requests at which drafts are worth it: there and at all smaller numbers of the
    curve, the speedup is at least 1 + WORTH. 0 if the first number fails already.

    curve: (live requests, speedup), by rising live requests.
    """
    return max((live for live, _ in takewhile(lambda point: point[1] >= 1 + WORTH, curve)), default=0)


def advice(
    das: Mapping[str, float],
    settings: str,
    pays: int,
    pays_dearer: int,
    stock: Mapping[str, float] | None,
) -> str:
    """Return one line of advice. It is "turn it on" if drafts are expected to save time, and cost no time even if
    drafted tokens are dearer.

    das: the row of the chosen arm. settings: its overrides. pays, pays_dearer: see pays_up_to. stock: the row of vLLM
    as it comes, if the times of passes are derived.
    """
    gain, certain_gain = -das["rollout_change"], -das["high_change"]
    more = ""
    if stock is not None:
        more = f" {against_stock(das, stock)} Step times are derived: measure yours (task.step_ms)."
    if gain >= WORTH and certain_gain >= 0:
        return (
            f"Turn it on with arm=das {settings}: rollouts should take {gain:.0%} less time ({certain_gain:.0%} to "
            f"{-das['low_change']:.0%}), whole steps {-das['step_change']:.0%} less; it pays "
            f"{where(pays, pays_dearer)}.{more}"
        )
    if gain >= WORTH:
        return (
            f"Do not turn it on yet: rollouts should take {gain:.0%} less time, but {-certain_gain:.0%} more if "
            f"drafted tokens are dearer; it pays {where(pays, pays_dearer)}.{more}"
        )
    return (
        f"Do not turn it on: speculation from history changes rollout time by {-gain:+.0%}; it pays "
        f"{where(pays, pays_dearer)}, and {das['tokens_per_pass']:.2f} tokens per pass do not make up for what drafts "
        f"cost.{more}"
    )


def against_stock(das: Mapping[str, float], stock: Mapping[str, float]) -> str:
    """Return a sentence that compares the chosen arm with vLLM as it comes. das, stock: the rows of the arms."""
    ratio = das["rollout_s"] / stock["rollout_s"]
    low, high = (ratio / (1 - cost) for cost in INVARIANCE_COST)
    return (
        f"Against vLLM as it comes (stock) that is {ratio:.2f} of its rollout time; with exact=bits {low:.2f} to "
        f"{high:.2f}, whose kernels cost {INVARIANCE_COST[0]:.0%} of throughput with 8B on an H200 and "
        f"{INVARIANCE_COST[1]:.0%} with 1.7B on an H20."
    )


def where(pays: int, pays_dearer: int) -> str:
    """Return in words up to how many live requests per engine drafting pays. pays, pays_dearer: results of `pays_up_to`
    at the expected price of drafted tokens and at a dearer one."""

    def up_to(live: int) -> str:
        return f"up to about {live} live requests per engine" if live else "at no number of live requests"

    if pays == pays_dearer == LIVE[-1]:
        return f"at every number of live requests per engine that was considered, up to {LIVE[-1]}"
    if pays == pays_dearer:
        return up_to(pays)
    return f"{up_to(pays)}{' and more' * (pays == LIVE[-1])} ({pays_dearer} if drafted tokens are dearer)"
