"""Latency forms (experiments.simulate.times.Form) that interpolate between measured times of passes."""

from dataclasses import dataclass

import numpy as np

from das.budget.latency import Array


@dataclass(frozen=True)
class Table:
    """Measured times of passes by their number of tokens. Linear between the points; the last two are extrapolated."""

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.seconds) or len(self.tokens) < 2:
            raise ValueError("a latency table needs two points or more, with tokens and seconds for each")
        if min(np.diff(self.tokens)) <= 0:
            raise ValueError("a latency table's tokens must rise from point to point")
        if min(self.seconds) <= 0:
            raise ValueError(f"times must be positive, got {min(self.seconds)}")
        for fewer, more in zip(self.seconds, self.seconds[1:], strict=False):
            if more < fewer:  # beyond the last point, times would become negative
                raise ValueError(f"times must not fall as tokens rise, got {fewer:.4g} s, then {more:.4g} s")

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.tokens[-1] - self.tokens[-2])
        beyond = np.maximum(np.asarray(tokens) - self.tokens[-1], 0.0) * slope
        return np.interp(tokens, self.tokens, self.seconds) + beyond


@dataclass(frozen=True)
class Grid:
    """Measured times of passes at every combination of three axes. Linear between the points and beyond the last."""

    live: Array  # requests
    drafts: Array  # drafted tokens per request
    context: Array  # tokens of context per request
    seconds_L_D_C: Array

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        live, tokens, context = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (live, tokens, context)))
        ways = (
            _between(self.live, live),
            _between(self.drafts, (tokens - live) / live),
            _between(self.context, context / live),
        )
        total = np.zeros(live.shape)
        for i, at_live in ways[0]:
            for j, at_drafts in ways[1]:
                for k, at_context in ways[2]:
                    total = total + at_live * at_drafts * at_context * self.seconds_L_D_C[i, j, k]
        return np.maximum(total, float(self.seconds_L_D_C.min()))


def _between(points: Array, values: Array) -> list[tuple[np.ndarray, Array]]:
    """Return what linear interpolation at `values` needs: two pairs (indices of neighbouring points, their weights).

    Beyond the outermost points a weight is negative. If there is only one point, its weight is 1.
    """
    if len(points) == 1:
        return [(np.zeros(values.shape, np.int64), np.ones(values.shape))]
    low = np.clip(np.searchsorted(points, values, side="right") - 1, 0, len(points) - 2)
    fraction = (values - points[low]) / (points[low + 1] - points[low])
    return [(low, 1 - fraction), (low + 1, fraction)]
