"""The seconds of a replayed pass: separate terms for the target's forward, prompts, drafting and the host."""

from dataclasses import dataclass, fields

import numpy as np

from das.budget.latency_forms import Array, Form


@dataclass(frozen=True)
class Table:
    """Measured times of passes by their number of tokens. Linear between the points, and beyond the last two."""

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
            if more < fewer:  # beyond the last point they would become negative
                raise ValueError(f"times must not fall as tokens rise, got {fewer:.4g} s, then {more:.4g} s")

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.tokens[-1] - self.tokens[-2])
        beyond = np.maximum(np.asarray(tokens) - self.tokens[-1], 0.0) * slope
        return np.interp(tokens, self.tokens, self.seconds) + beyond


@dataclass(frozen=True)
class Grid:
    """Measured times of passes at every combination of three axes. Linear between the points, and beyond the last."""

    live: Array  # requests
    drafts: Array  # drafted tokens per request
    context: Array  # tokens of context per request
    seconds_L_D_C: Array

    def __post_init__(self) -> None:
        if self.seconds_L_D_C.shape != (len(self.live), len(self.drafts), len(self.context)):
            raise ValueError("a latency grid needs a time for every combination of live, drafts and context")
        if not (self.seconds_L_D_C > 0).all():
            raise ValueError(f"times must be positive, got {float(self.seconds_L_D_C.min())}")

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
    """Two pairs (index of a neighbouring point, its weight) for linear interpolation at each value.

    Beyond the outermost points a weight is negative. A single point counts alone.
    """
    if len(points) == 1:
        return [(np.zeros(values.shape, np.int64), np.ones(values.shape))]
    low = np.clip(np.searchsorted(points, values, side="right") - 1, 0, len(points) - 2)
    fraction = (values - points[low]) / (points[low + 1] - points[low])
    return [(low, 1 - fraction), (low + 1, fraction)]


@dataclass(frozen=True)
class Times:
    """The prices of a replay, in seconds."""

    form: Form  # of a target pass: a form of das.budget.latency_forms, or a Table or Grid
    host: float = 0.0  # for each pass: scheduling, sampling, output
    prefill: float = 0.0  # for each prompt token
    draft_request: float = 0.0  # for each request that is asked for a draft
    draft_token: float = 0.0  # for each drafted token, before trimming
    speculation: float = 0.0  # for each pass that verifies drafts, in addition to the form
    branching: float = 0.0  # for each pass with a draft that branches: copies of KV blocks

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "form" and getattr(self, field.name) < 0:
                raise ValueError(f"cost {field.name} is negative: {getattr(self, field.name)}")

    def target(self, live: int, num_drafted: int, context: int, branches: bool = False) -> float:
        """Seconds of a target pass, including the host's. branches: whether a draft branches in it."""
        b, n, x = (np.array(value, np.float64) for value in (live, live + num_drafted, context))
        extra = (self.speculation if num_drafted else 0.0) + (self.branching if branches else 0.0)
        return float(self.form.predict(b, n, x)) + self.host + extra

    def plain(self, live: int, context: int, passes: int) -> Array:
        """Seconds of each of `passes` target passes in a row, without drafts.

        context: tokens of context of all requests in the first pass. It grows by one token per request and pass.
        """
        contexts = context + live * np.arange(passes, dtype=np.float64)
        b = np.full(passes, live, np.float64)
        return self.form.predict(b, b, contexts) + self.host
