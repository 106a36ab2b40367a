"""Fits the roofline of experiments/replay/roofline.py to measured times, as EfficientRollout published it."""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from experiments.replay.roofline import Array, PassWork, SelfDraftRoofline


def speedup(model: SelfDraftRoofline, B: Array, S: Array, gamma: Array, tau: Array) -> Array:
    """Time without drafts / time with drafts, where a cycle emits tau tokens for each request."""
    return tau * model.target(B, S) / (gamma * model.draft(B, S) + model.verify(B, S, gamma))


@dataclass(frozen=True)
class Sweep:
    """Times measured on a grid, one row per point.

    A row with B = 0 describes a pass whose requests cost nothing. It is not fitted, but counts in `sign_accuracy`, as
    in the published accuracies.
    """

    target_N_3: Array  # B, S, T_T
    draft_N_4: Array  # B, S, gamma, T_D
    cycle_N_5: Array  # B, S, gamma, T_D, T_V, where both were measured

    def target_seconds(self, B: Array, S: Array) -> Array:
        """Measured T_T at the points (B, S). Raises KeyError for a point that was not measured."""
        measured = {(b, s): seconds for b, s, seconds in self.target_N_3.tolist()}
        return np.array([measured[point] for point in zip(B.tolist(), S.tolist(), strict=True)])


def read_sweep(path: Path) -> Sweep:
    """Read a CSV file with columns batch, seq, gamma, mode, median_ms.

    The modes are target_decode, drafter_decode and target_verify.
    """
    modes: dict[str, dict[tuple[float, float, float], float]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            point = (float(row["batch"]), float(row["seq"]), float(row["gamma"]))
            modes.setdefault(row["mode"], {})[point] = float(row["median_ms"]) / 1e3
    drafts, verified = modes["drafter_decode"], modes["target_verify"]
    return Sweep(
        target_N_3=np.array([(B, S, t) for (B, S, gamma), t in modes["target_decode"].items() if gamma == 0]),
        draft_N_4=np.array([(*point, t) for point, t in drafts.items()]),
        cycle_N_5=np.array([(*point, drafts[point], t) for point, t in verified.items() if point in drafts]),
    )


def fit(work: PassWork, sweep: Sweep) -> SelfDraftRoofline:
    """Fit the six constants in two stages, as published.

    Stage 1 fits BW, kappa and c_T to T_T. Stage 2 keeps these and fits eta_D, c_D and c_V to T_D and T_V.
    """
    return _fit_drafting(work, sweep, _fit_target(work, sweep))


def _fit_target(work: PassWork, sweep: Sweep) -> SelfDraftRoofline:
    """Stage 1: minimise the squared errors of log T_T, from several starts."""
    B, S, seconds = sweep.target_N_3[sweep.target_N_3[:, 0] > 0].T

    def model(p: Array) -> SelfDraftRoofline:
        return SelfDraftRoofline(work, p[0] * 1e12, p[1] * 1e3, 1.0, p[2] * 1e-6, 0.0, 0.0)

    # The bandwidth is near its final value if reading the weights alone explains the fastest pass.
    bandwidth = work.target_bytes / float(seconds.min()) / 1e12
    starts = [(bandwidth * factor, kv, c) for factor in (0.9, 1.1) for kv in (5.0, 50.0) for c in (5.0, 50.0)]
    return model(positive(lambda p: np.log(model(p).target(B, S) / seconds), starts))


def _fit_drafting(work: PassWork, sweep: Sweep, target: SelfDraftRoofline) -> SelfDraftRoofline:
    """Stage 2: minimise the errors of T_D, T_V, the cycle gamma T_D + T_V and the ratio T_T / cycle.

    For each gamma, the mean squared log errors of T_D, T_V and the cycle have half the weight, and the mean squared
    error of the ratio has the other half. All are sums of squares, so one least-squares problem holds them.
    """
    B, S, gamma, draft, verify = sweep.cycle_N_5[sweep.cycle_N_5[:, 0] > 0].T
    drafts = sweep.draft_N_4[sweep.draft_N_4[:, 0] > 0]
    ratio = sweep.target_seconds(B, S) / (gamma * draft + verify)
    gammas = np.unique(gamma)
    share = np.sqrt(0.5 / len(gammas))
    weight = share / np.sqrt([np.sum(gamma == g) for g in gamma])  # every gamma counts the same
    draft_weight = share / np.sqrt([np.sum(drafts[:, 2] == g) for g in drafts[:, 2]])

    def model(p: Array) -> SelfDraftRoofline:
        return SelfDraftRoofline(
            work, target.bandwidth, target.kv_bytes, p[0], target.c_target, p[1] * 1e-6, p[2] * 1e-6
        )

    def residuals(p: Array) -> Array:
        tried = model(p)
        tried_verify = tried.verify(B, S, gamma)
        tried_cycle = gamma * tried.draft(B, S) + tried_verify
        return np.concatenate(
            [
                draft_weight * np.log(tried.draft(drafts[:, 0], drafts[:, 1]) / drafts[:, 3]),
                weight * np.log(tried_verify / verify),
                weight * np.log(tried_cycle / (gamma * draft + verify)),
                weight * (tried.target(B, S) / tried_cycle - ratio),
            ]
        )

    starts = [(eta, c, 2 * c) for eta in (1.1, 1.5, 2.5) for c in (20.0, 100.0)]
    return model(positive(residuals, starts))


def sign_accuracy(model: SelfDraftRoofline, sweep: Sweep, gamma: int) -> float:
    """Share of measured points at this gamma where the model predicts correctly whether drafting pays (tau = gamma)."""
    B, S, g, draft, verify = sweep.cycle_N_5[sweep.cycle_N_5[:, 2] == gamma].T
    measured = g * sweep.target_seconds(B, S) / (g * draft + verify)
    return float(np.mean((measured > 1) == (speedup(model, B, S, g, g) > 1)))


def time_errors(model: SelfDraftRoofline, sweep: Sweep) -> tuple[float, float, float]:
    """Mean absolute relative errors of T_T, T_D and T_V at the fitted points."""
    B, S, seconds = sweep.target_N_3[sweep.target_N_3[:, 0] > 0].T
    target = np.mean(np.abs(model.target(B, S) / seconds - 1))
    B, S, _, seconds = sweep.draft_N_4[sweep.draft_N_4[:, 0] > 0].T
    draft = np.mean(np.abs(model.draft(B, S) / seconds - 1))
    B, S, gamma, _, seconds = sweep.cycle_N_5[sweep.cycle_N_5[:, 0] > 0].T
    verify = np.mean(np.abs(model.verify(B, S, gamma) / seconds - 1))
    return float(target), float(draft), float(verify)


def positive(residuals: Callable[[Array], Array], starts: Iterable[Sequence[float]]) -> Array:
    """Parameters > 0 with the least sum of squared residuals: the best of Levenberg-Marquardt runs from every start.

    The search moves the logarithms of the parameters, so that one step size suits all.
    """
    minima = [
        least_squares(lambda logs: residuals(np.exp(logs)), np.log(start), method="lm", xtol=1e-14, ftol=1e-14)
        for start in starts
    ]
    return np.exp(min(minima, key=lambda minimum: minimum.cost).x)
