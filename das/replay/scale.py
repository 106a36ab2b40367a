"""Forms that stand for other forms: one simulated request for several, drafts at another price, context read."""

from dataclasses import dataclass

import numpy as np

from das.budget.latency_forms import Array, Form


@dataclass(frozen=True)
class Scaled:
    """Every simulated request stands for `requests` alike ones: few recorded responses for a large batch."""

    form: Form
    requests: float

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.form.predict(live * self.requests, tokens * self.requests, context * self.requests)


@dataclass(frozen=True)
class CostScaled:
    """What drafted tokens add to a pass costs `times` as much, and each `token` seconds beside: how far off may the
    latency model be?"""

    form: Form
    times: float
    token: float = 0.0

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        plain = self.form.predict(live, live, context)
        drafted = np.subtract(tokens, live)
        return plain + self.times * (self.form.predict(live, tokens, context) - plain) + self.token * drafted


@dataclass(frozen=True)
class ContextRead:
    """Keys and values of all context are read once a pass, beside what the form says."""

    form: Form
    token: float  # seconds a token of context

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.form.predict(live, tokens, context) + self.token * context
