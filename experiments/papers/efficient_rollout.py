"""EfficientRollout (arXiv 2606.18967), recomputed: main table, EAGLE-3 by depth.

Its roofline of self-drafting, in which a cheaper copy of the target drafts:

M_T = (W_T + kappa B S) / BW     M_D = (eta_D W_D + kappa B S) / BW     C = B (C_dense + S C_attn) / F_eff
T_T = max(M_T, C) + c_T B        T_D = max(M_D, C) + c_D B              T_V = max(M_T, (gamma + 1) C) + c_V B

Each of B requests has S tokens of context and gamma drafted tokens. A decode step without drafts takes T_T. A cycle
of gamma draft passes and one verification takes gamma T_D + T_V.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from analysis.report import Line, Section, curves
from das.budget.latency import Array
from experiments.run.progress import Progress
from experiments.settings.checked import Settings
from experiments.simulate.engine import (
    ByDepth,
    Cost,
    PlainEngine,
    Profile,
    ProfiledDrafter,
    ProfileEngine,
    constant_rate,
    simulate_rollout,
)
from experiments.simulate.times import Times
from experiments.simulate.workload import Workload, of_lengths

PREFACE = (
    "Times: the paper's published roofline constants (A100, TP1). Lengths: drawn between guessed quantiles, because "
    "the paper gives only completion times; 8 engines have 128 requests each, and the slowest ends the rollout. "
    "Acceptance: the published rate, at every position. Change = time with speculation / time without - 1."
)
MODELS = ("Qwen2.5-7B", "Qwen2.5-14B", "Llama-3.1-8B-Instruct")
MAIN = (
    "With the roofline's times alone both W4 arms gain more than was measured. 10 to 15 ms of host time per cycle, "
    "which the roofline leaves out, bring the 7B and the 8B near the measured values; none that was tried reaches the "
    "slowdown of the 14B with speculation always on, of which dearer verification (T_V in the next section) may be a "
    "part. The order toggle, always on, plain holds in every cell. No constant was fitted; the host times are a scan."
)
EAGLE = (
    "One mean tau promises all three models at least a quarter less rollout time. But acceptance falls with depth in "
    "the tail (not for the 14B), and verification took longer than the roofline says. With both as published, the "
    "order is the measured one, and the 8B loses time; all three are 7 to 9 points away from what was measured. T_V's "
    "excess over the roofline, timed at one unstated batch size, is taken to be the same at all. tau by depth is from "
    "the first five steps, the measured times are from a hundred."
)
Number = Array | float
HOST_MS = (0, 5, 10, 15)  # milliseconds of host time per speculation cycle, which the paper's roofline leaves out


@dataclass(frozen=True)
class Roofline:
    """Predicts the seconds of passes by the published constants. Arrays B and S broadcast."""

    W_T: float  # bytes of weights that a target pass reads
    W_D: float  # and a draft pass
    C_dense: float  # operations of a token
    C_attn: float  # and for each token of its context
    F_eff: float  # operations per second
    BW: float  # bytes per second
    kappa_eff: float  # bytes for each token of context
    eta_D: float  # slowdown of reading the draft's weights, relative to their bytes
    c_T: float  # microseconds for each request of a target pass
    c_D: float  # of a draft pass
    c_V: float  # of a verification

    def _seconds(self, weights: float, tokens: Number, micros: float, B: Number, S: Number) -> Array:
        memory = (weights + self.kappa_eff * B * S) / self.BW
        compute = B * (self.C_dense + S * self.C_attn) / self.F_eff
        return np.maximum(memory, tokens * compute) + micros * 1e-6 * B

    def target(self, B: Number, S: Number) -> Array:
        """Return T_T."""
        return self._seconds(self.W_T, 1, self.c_T, B, S)

    def draft(self, B: Number, S: Number) -> Array:
        """Return T_D."""
        return self._seconds(self.eta_D * self.W_D, 1, self.c_D, B, S)

    def verify(self, B: Number, S: Number, gamma: Number) -> Array:
        """Return T_V."""
        return self._seconds(self.W_T, gamma + 1, self.c_V, B, S)

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        """Return T_T, as a latency form. context: tokens of all requests together."""
        return self.target(live, context / live)


def roofline(constants: dict[str, float]) -> Roofline:
    """Make a model's roofline from its published constants."""
    return Roofline(**{field.name: constants[field.name] for field in fields(Roofline)})


def w4(model: Roofline, profile: Profile, toggle: bool, host_ms: float) -> ProfiledDrafter:
    """Return the paper's drafter: a 4-bit copy of the target model. In a cycle it makes gamma draft passes, and the
    target verifies the gamma tokens.

    toggle: speculate only once the predicted speedup is at least 1 + eps (eps = 0.05). host_ms: host time per cycle.
    """
    return ProfiledDrafter(
        profile,
        draft=lambda live, context: float(model.draft(live, context / live)),
        verify=lambda live, context: float(model.verify(live, context / live, profile.gamma)),
        host=host_ms * 1e-3,
        pays_from=1.05 if toggle else 0.0,
    )


def drawn_lengths(quantiles: dict[str, int], requests: int, seed: int) -> Workload:
    """Return a workload with random lengths. They follow the quantiles, with log-linear interpolation between these.

    The shortest response has 1/5 of the median length. Prompts have 150 tokens.
    """
    shares = [0.0, *map(float, quantiles)]
    values = [quantiles["0.5"] / 5, *quantiles.values()]
    drawn = np.random.default_rng(seed).random(requests)
    return of_lengths(np.exp(np.interp(drawn, shares, np.log(values))).astype(int), prompt=150)


def change(model: Roofline, quantiles: dict[str, int], drafter: ProfiledDrafter) -> float:
    """Return by how much the drafter changes the rollout time on 8 engines: time with drafts / time without drafts - 1,
    as the mean over three rollouts."""
    placed, times = [list(range(e, 1024, 8)) for e in range(8)], Times(model)
    changes = []
    for seed in range(3):
        work = drawn_lengths(quantiles, 1024, seed)
        plain, drafted = (
            simulate_rollout(work, [make(e) for e in range(8)], placed, 1).rollout_s
            for make in (lambda e: PlainEngine(times, 128), lambda e: ProfileEngine(times, 128, drafter, e))
        )
        changes.append(drafted / plain - 1)
    return float(np.mean(changes))


def constant(seconds: float) -> Cost:
    """Return the costs of passes that always take as long."""
    return lambda live, context: seconds


def sections(task: Any, budget: Settings, published: dict[str, Any], folder: Path, progress: Progress) -> list[Section]:
    """Recompute the paper's results. Returns all sections of the report; their figures are in `folder`."""
    constants = published["er_constants"]["data"]
    models = {name: roofline(constants[name]) for name in MODELS}
    return [main_table(published, models, folder, progress), eagle(published, models, progress)]


def main_table(published: dict[str, Any], models: dict[str, Roofline], folder: Path, progress: Progress) -> Section:
    """Make the section of the main table: compare drafts by a 4-bit copy (W4), always on or with the toggle, to plain
    decoding, for several host times per cycle."""
    quantiles = published["er_replay"]["data"]["guessed_length_quantiles"]
    rows = published["er_main"]["data"]["rows"]
    lines, figure = [], {}
    for name, model in models.items():
        for method, toggle in (("w4_always_on", False), ("full", True)):
            row = next(row for row in rows if row["model"] == name and row["method"] == method)
            profile = Profile((row["alpha_pct"] / 100,) * round(row["gamma_mean"]))
            changes = [change(model, quantiles[name], w4(model, profile, toggle, host)) for host in HOST_MS]
            figure[f"{name}, {method}"] = (HOST_MS, [100 * c for c in changes])
            ours = " / ".join(f"{100 * c:+.1f}" for c in changes)
            lines.append(
                Line(f"{name}, {method}, %: host 0 / 5 / 10 / 15 ms", "", f"{row['rollout_change_pct']:+.1f}", ours)
            )
            progress.note(f"{name} {method}: {ours} (paper {row['rollout_change_pct']:+.1f})")
    drawn = curves(
        folder / "er_host.png", figure, "host time per speculation cycle (ms)", "change of rollout time (%)", ""
    )
    return Section(
        "Main table: rollout time",
        "Means of 3 rollouts per cell. Host time is paid in every speculation cycle; the roofline that the toggle asks "
        "does not contain it.",
        lines,
        MAIN,
        [drawn],
    )


def eagle(published: dict[str, Any], models: dict[str, Roofline], progress: Progress) -> Section:
    """Make the section about EAGLE-3: simulate it with one mean tau or with tau by depth, and with times of
    verification from the roofline or as published."""
    rows, depth = published["er_main"]["data"]["rows"], published["er_eagle_depth"]["data"]
    quantiles = published["er_replay"]["data"]["guessed_length_quantiles"]
    begins = tuple(int(depths.split("-")[0].replace("k", "000")) for depths in depth["depth_bins"])
    lines = []
    for name, model in models.items():
        row = next(row for row in rows if row["model"] == name and row["method"] == "eagle3")
        timed = {key: value * 1e-3 for key, value in published["er_eagle_times"]["data"][name].items()}
        verify = w4(model, Profile((0.5,) * 3), False, 0).verify
        # The part of the timed verification beyond a plain pass that the roofline does not predict.
        beyond = timed["T_V"] - timed["T_T"] - (verify(1, 2048) - float(model.target(1, 2048)))
        mean: Profile | ByDepth = constant_rate(row["tau"], 3)
        by_depth = ByDepth(begins, tuple(constant_rate(tau, 3) for tau in depth["first_five_steps"][name]))
        cells = []
        for profile, host in ((mean, 0.0), (by_depth, 0.0), (by_depth, max(0.0, beyond))):
            drafter = ProfiledDrafter(profile, constant(timed["T_D"]), verify, host)
            cells.append(f"{100 * change(model, quantiles[name], drafter):+.1f}")
        ours = " / ".join(cells)
        claimed = f"{row['rollout_change_pct']:+.1f}"
        lines.append(Line(f"{name}, %: mean tau / tau by depth / and {1e3 * beyond:.1f} ms of T_V", "", claimed, ours))
        progress.note(f"{name} eagle3: {ours} (paper {claimed})")
    return Section(
        "EAGLE-3: acceptance by depth",
        "Draft time as published. tau by depth: from the first five steps. T_V: what the published verification takes "
        "beyond a plain pass and beyond the roofline. 3 rollouts per cell.",
        lines,
        EAGLE,
    )
