"""What a pass costs in a replay: the target's forward, prompts, drafting and the host, as terms of their own."""

from dataclasses import dataclass, fields

import numpy as np

from das.budget.latency_forms import Array, Form


@dataclass(frozen=True)
class Table:
    """Measured times of passes by their tokens, linear between the points and beyond the last two."""

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.seconds) or len(self.tokens) < 2:
            raise ValueError("a latency table needs two points or more, tokens and seconds of each")
        if min(np.diff(self.tokens)) <= 0:
            raise ValueError("a latency table's tokens must rise from point to point")
        if min(self.seconds) <= 0:
            raise ValueError(f"times must be positive, got {min(self.seconds)}")
        for fewer, more in zip(self.seconds, self.seconds[1:], strict=False):
            if more < fewer:  # prolonged, they would become negative
                raise ValueError(f"times must not fall as tokens rise, got {fewer:.4g} s, then {more:.4g} s")

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.tokens[-1] - self.tokens[-2])
        beyond = np.maximum(np.asarray(tokens) - self.tokens[-1], 0.0) * slope
        return np.interp(tokens, self.tokens, self.seconds) + beyond


@dataclass(frozen=True)
class Grid:
    """Times of passes at every combination of live requests, drafted tokens a request and tokens of context a request:
    linear between the points and beyond the outermost ones. Seconds."""

    live: Array
    drafts: Array
    context: Array
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
    """Of each value the neighbouring points and how much each counts."""
    if len(points) == 1:
        return [(np.zeros(values.shape, np.int64), np.ones(values.shape))]
    low = np.clip(np.searchsorted(points, values, side="right") - 1, 0, len(points) - 2)
    part = (values - points[low]) / (points[low + 1] - points[low])
    return [(low, 1 - part), (low + 1, part)]


@dataclass(frozen=True)
class Times:
    """Seconds. The form is of das.budget.latency_forms, or a Table."""

    form: Form
    host: float = 0.0  # a pass: scheduling, sampling, output
    prefill: float = 0.0  # a prompt token
    draft_request: float = 0.0  # a request that is asked for a draft
    draft_token: float = 0.0  # a drafted token, before trimming
    speculation: float = 0.0  # a pass that verifies drafts, beside what the form says

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "form" and getattr(self, field.name) < 0:
                raise ValueError(f"cost {field.name} is negative: {getattr(self, field.name)}")

    def target(self, live: int, drafted: int, context: int) -> float:
        """A target pass, with the host's share."""
        b, n, x = (np.array(value, np.float64) for value in (live, live + drafted, context))
        return float(self.form.predict(b, n, x)) + self.host + (self.speculation if drafted else 0.0)

    def plain(self, live: int, context: int, passes: int) -> Array:
        """`passes` target passes in a row without drafts, the context growing by a token a request and pass."""
        contexts = context + live * np.arange(passes, dtype=np.float64)
        b = np.full(passes, live, np.float64)
        return self.form.predict(b, b, contexts) + self.host
