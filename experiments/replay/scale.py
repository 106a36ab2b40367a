"""Latency forms that change another form: requests that stand for several, another price of drafts, context read."""

from dataclasses import dataclass

import numpy as np

from das.budget.latency_forms import Array, Form


@dataclass(frozen=True)
class Scaled:
    """Every simulated request stands for `requests` equal ones: few recorded responses stand for a large batch."""

    form: Form
    requests: float

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.form.predict(live * self.requests, tokens * self.requests, context * self.requests)


@dataclass(frozen=True)
class CostScaled:
    """Drafted tokens add `times` as much to a pass as `form` says, and each adds `token` seconds more.

    This shows how much a result depends on the latency model being right.
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
    """In addition to what `form` says, a pass reads the keys and values of all context once."""

    form: Form
    token: float  # seconds for each token of context

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.form.predict(live, tokens, context) + self.token * context


@dataclass(frozen=True)
class CheaperPass:
    """A pass whose fixed time, without any token, is this share of what `form` says. Tokens cost what they did."""

    form: Form
    share: float

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        zero = np.zeros(np.shape(tokens))
        return self.form.predict(live, tokens, context) - (1 - self.share) * self.form.predict(zero, zero, zero)
