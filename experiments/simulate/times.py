"""The seconds of a simulated pass. `Times` takes them from a formula (a form) or from measured passes (Table, Grid);
gpu_times.py computes those of GPUs."""

from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np

from das.budget.latency import Array


@dataclass(frozen=True, slots=True)
class PassWork:
    """What a pass does.

    live: requests. drafted: drafted tokens that it verifies, placeholders included. context: tokens of prompt and
    response of all requests together. emitted: tokens. asked: requests that were asked for these drafts. joined:
    requests that are new in the pass. prompt: tokens of their prompts; new_prompt: of those that no sibling brought
    before, so that they are not in the prefix cache.
    """

    live: int
    drafted: int
    context: int
    emitted: int
    asked: int = 0
    joined: int = 0
    prompt: int = 0
    new_prompt: int = 0

    def undrafted(self) -> "PassWork":
        """Returns the same pass without drafts."""
        return replace(self, drafted=0, emitted=self.live, asked=0)


class PassTimes(Protocol):
    """How long passes take."""

    def seconds(self, work: PassWork) -> float:
        """Returns the seconds of a pass, from the end of the pass before to its own."""

    def plain(self, live: int, context: int, passes: int) -> Array:
        """Returns the seconds of each of `passes` passes in a row, without drafts and prompts.

        context: tokens of context of all requests in the first pass. It grows by one token per request and pass.
        """


class Form(Protocol):
    """A formula for the time of target passes."""

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        """Returns the predicted seconds of passes. live: their requests. tokens: live + drafted. context: prompt and
        response tokens of the requests. The arguments may broadcast."""


@dataclass(frozen=True)
class Affine:
    """A form with a fixed time for each pass and a time for each token (paper Eq 1)."""

    c_base: float  # seconds per pass
    c_tok: float  # seconds per token

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.c_base + self.c_tok * tokens


@dataclass(frozen=True)
class Times:
    """Times of passes by a form, and what a pass takes beside it. In seconds."""

    form: Form  # the time of a target pass
    prefill: float = 0.0  # for each prompt token
    draft_request: float = 0.0  # for each request that is asked for a draft

    def seconds(self, work: PassWork) -> float:
        b, n, x = (np.array(value, np.float64) for value in (work.live, work.live + work.drafted, work.context))
        return float(self.form.predict(b, n, x)) + self.prefill * work.prompt + self.draft_request * work.asked

    def plain(self, live: int, context: int, passes: int) -> Array:
        contexts = context + live * np.arange(passes, dtype=np.float64)
        b = np.full(passes, live, np.float64)
        return self.form.predict(b, b, contexts)


@dataclass(frozen=True)
class Priced:
    """Times in which what drafts add to a pass is dearer or cheaper by the factor `price`. This shows how much a result
    depends on errors of the times."""

    times: PassTimes
    price: float

    def seconds(self, work: PassWork) -> float:
        plain = self.times.seconds(work.undrafted())
        return plain + self.price * (self.times.seconds(work) - plain)

    def plain(self, live: int, context: int, passes: int) -> Array:
        return self.times.plain(live, context, passes)


@dataclass(frozen=True)
class Scaled:
    """Times in which each simulated request stands for `requests` equal ones, so that a few recorded responses make a
    large batch."""

    times: PassTimes
    requests: float

    def seconds(self, work: PassWork) -> float:
        counts = {field.name: round(self.requests * getattr(work, field.name)) for field in fields(work)}
        return self.times.seconds(PassWork(**counts))

    def plain(self, live: int, context: int, passes: int) -> Array:
        return self.times.plain(round(self.requests * live), round(self.requests * context), passes)


# ---- measured passes ----


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
