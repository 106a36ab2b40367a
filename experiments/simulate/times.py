"""The seconds of a simulated pass. `Times` takes them from a formula or a table of measured passes; gpu_times.py
computes those of GPUs."""

from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np

from das.budget.latency import Array


@dataclass(frozen=True, slots=True)
class PassWork:
    """What a pass does.

    live: requests. drafted: drafted tokens that it verifies, placeholders included. context: tokens of prompt and
    response of all requests together. emitted: tokens. asked, proposed: requests that were asked for these drafts, and
    the tokens that were proposed before the budget cut them. joined: requests that are new in the pass. prompt: tokens
    of their prompts; new_prompt: of those that no sibling brought before, so that they are not in the prefix cache.
    """

    live: int
    drafted: int
    context: int
    emitted: int
    asked: int = 0
    proposed: int = 0
    joined: int = 0
    prompt: int = 0
    new_prompt: int = 0

    def undrafted(self) -> "PassWork":
        """Returns the same pass without drafts."""
        return replace(self, drafted=0, emitted=self.live, asked=0, proposed=0)


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
    host: float = 0.0  # for each pass: scheduling, sampling, output
    prefill: float = 0.0  # for each prompt token
    draft_request: float = 0.0  # for each request that is asked for a draft
    draft_token: float = 0.0  # for each drafted token, before trimming
    speculation: float = 0.0  # for each pass that verifies drafts, in addition to the form

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "form" and getattr(self, field.name) < 0:
                raise ValueError(f"cost {field.name} is negative: {getattr(self, field.name)}")

    def seconds(self, work: PassWork) -> float:
        b, n, x = (np.array(value, np.float64) for value in (work.live, work.live + work.drafted, work.context))
        beside = self.host + self.prefill * work.prompt + (self.speculation if work.drafted else 0.0)
        drafting = self.draft_request * work.asked + self.draft_token * work.proposed
        return float(self.form.predict(b, n, x)) + beside + drafting

    def plain(self, live: int, context: int, passes: int) -> Array:
        contexts = context + live * np.arange(passes, dtype=np.float64)
        b = np.full(passes, live, np.float64)
        return self.form.predict(b, b, contexts) + self.host


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
