"""Roofline model of self-drafting: a cheaper copy of the target drafts (EfficientRollout, arXiv 2606.18967).

M_T = (W_T + kappa B S) / BW     M_D = (eta_D W_D + kappa B S) / BW     C = B (C_dense + S C_attn) / F_eff
T_T = max(M_T, C) + c_T B        T_D = max(M_D, C) + c_D B              T_V = max(M_T, (gamma + 1) C) + c_V B

B requests have S tokens of context each and gamma drafted tokens each. A decode step without drafts takes T_T. A cycle
of gamma draft passes and one verification takes gamma T_D + T_V.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PassWork:
    """Bytes read and operations computed by a pass; known without measuring."""

    target_bytes: float  # W_T: weights read by a target pass
    draft_bytes: float  # W_D: weights read by a draft pass
    dense_flop: float  # C_dense: per token
    attention_flop: float  # C_attn: per token and token of its context
    flops: float  # F_eff: floating-point operations per second that the device reaches


@dataclass(frozen=True)
class SelfDraftRoofline:
    """The six fitted constants, and the times they predict in seconds. Arrays B and S broadcast."""

    work: PassWork
    bandwidth: float  # BW: bytes a second
    kv_bytes: float  # kappa: bytes for a token of context
    draft_factor: float  # eta_D: slowdown of reading the draft's weights, relative to their bytes
    c_target: float  # c_T: seconds a request, in a target pass
    c_draft: float  # c_D: the same in a draft pass
    c_verify: float  # c_V: the same in a verification

    def _memory(self, weights: float, B: Array, S: Array) -> Array:
        return (weights + self.kv_bytes * B * S) / self.bandwidth

    def _compute(self, B: Array, S: Array) -> Array:
        return B * (self.work.dense_flop + S * self.work.attention_flop) / self.work.flops

    def target(self, B: Array, S: Array) -> Array:
        """T_T: a decode step without drafts."""
        return np.maximum(self._memory(self.work.target_bytes, B, S), self._compute(B, S)) + self.c_target * B

    def draft(self, B: Array, S: Array) -> Array:
        """T_D: one pass of the drafting copy."""
        weights = self.draft_factor * self.work.draft_bytes
        return np.maximum(self._memory(weights, B, S), self._compute(B, S)) + self.c_draft * B

    def verify(self, B: Array, S: Array, gamma: Array) -> Array:
        """T_V: verification of gamma drafted tokens a request."""
        memory = self._memory(self.work.target_bytes, B, S)
        return np.maximum(memory, (gamma + 1) * self._compute(B, S)) + self.c_verify * B

    def speedup(self, B: Array, S: Array, gamma: Array, tau: Array) -> Array:
        """Time without drafts / time with drafts, where a cycle emits tau tokens for each request."""
        return tau * self.target(B, S) / (gamma * self.draft(B, S) + self.verify(B, S, gamma))


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
    return float(np.mean((measured > 1) == (model.speedup(B, S, g, g) > 1)))


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
    """Parameters > 0 with the least sum of squared residuals: the best of Levenberg-Marquardt runs from every start."""
    minima = [_descend(lambda logs: residuals(np.exp(logs)), np.log(start)) for start in starts]
    return np.exp(min(minima, key=lambda minimum: minimum[0])[1])


def _descend(residuals: Callable[[Array], Array], p: Array) -> tuple[float, Array]:
    """Levenberg-Marquardt: (sum of squares, parameters). Parameters are logarithms, so one step size suits all."""
    step, damping = 1e-6, 1e-3
    r = residuals(p)
    for _ in range(200):
        shifts = np.eye(len(p)) * step
        jacobian = np.stack([(residuals(p + s) - residuals(p - s)) / (2 * step) for s in shifts], axis=1)
        squares = jacobian.T @ jacobian
        # The small terms keep the system solvable where a parameter has no effect.
        scale = np.diag(squares.diagonal() + 1e-12 * np.trace(squares) + 1e-300)
        moved = np.clip(np.linalg.solve(squares + damping * scale, -jacobian.T @ r), -2, 2)
        tried = residuals(p + moved)
        if tried @ tried < r @ r:
            p, r, damping = p + moved, tried, damping / 10
            if np.abs(moved).max() < 1e-10:
                break
        else:
            damping *= 10
            if damping > 1e12:
                break
    return float(r @ r), p
