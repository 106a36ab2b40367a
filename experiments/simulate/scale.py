"""Latency forms that change another form: more requests, costlier drafts, reading of context."""

from dataclasses import dataclass

import numpy as np

from das.budget.latency import Array
from experiments.simulate.times import Form


@dataclass(frozen=True)
class Scaled:
    """A latency form in which each simulated request stands for `requests` equal ones, so that a few recorded responses
    make a large batch."""

    form: Form
    requests: float

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.form.predict(live * self.requests, tokens * self.requests, context * self.requests)


@dataclass(frozen=True)
class CostScaled:
    """A latency form with dearer or cheaper drafts: it multiplies by `times` the time that drafted tokens add in
    `form`, and adds `token` seconds for each drafted token.

    This shows how much a result depends on errors of the latency model.
    """

    form: Form
    times: float
    token: float = 0.0

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        plain = self.form.predict(live, live, context)
        num_drafted = np.subtract(tokens, live)
        return plain + self.times * (self.form.predict(live, tokens, context) - plain) + self.token * num_drafted


@dataclass(frozen=True)
class ContextRead:
    """A latency form that adds to the time of `form` the time to read the keys and values of all context once."""

    form: Form
    token: float  # seconds for each token of context

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.form.predict(live, tokens, context) + self.token * context
