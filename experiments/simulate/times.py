"""Computes the seconds of a replayed pass: the sum of the times of the target's forward pass, prompts, drafting and
host."""

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from das.budget.latency import Array


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
    """The times in seconds from which a replay computes the time of a pass."""

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

    def target(self, live: int, num_drafted: int, context: int) -> float:
        """Returns the seconds of a target pass, including the host's."""
        b, n, x = (np.array(value, np.float64) for value in (live, live + num_drafted, context))
        return float(self.form.predict(b, n, x)) + self.host + (self.speculation if num_drafted else 0.0)

    def plain(self, live: int, context: int, passes: int) -> Array:
        """Returns the seconds of each of `passes` target passes in a row, without drafts.

        context: tokens of context of all requests in the first pass. It grows by one token per request and pass.
        """
        contexts = context + live * np.arange(passes, dtype=np.float64)
        b = np.full(passes, live, np.float64)
        return self.form.predict(b, b, contexts) + self.host
