"""Simulated model drafters on recorded text. das.models.hybrid calls them as it calls a model in an engine.

No model is run. Every place of the text has a random number. The model is right at a place if this number is below its
measured acceptance, so all arms are equally lucky there. If the model is wrong, and after a wrong token, it drafts a
token that no text has. Its passes take simulated time. The history of responses, the merging of its drafts with the
model's, and the learned cost of a pass are the code of the real engine.

The acceptance is the same at all places. A real model has a lower acceptance where text is hard to predict. At such
places the history has no draft, and the model is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from das.budget.latency import Array
from experiments.simulate.times import Form

WRONG = 2 * 10**6  # a token id that no text has


@dataclass(frozen=True)
class DraftPass:
    """A latency form that predicts the time of a draft pass: `share` of the time of a pass of the policy (`form`), plus
    `request` seconds for each request."""

    form: Form
    share: float
    request: float = 0.0  # seconds

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.share * self.form.predict(live, tokens, context) + self.request * live


class CopyOnText:
    """A simulated copy of the policy, for das.models.hybrid. The real one is das.models.self_draft.

    rates      rates[j] = P(token j of a draft is right | the tokens before it are); the last holds for later tokens
    price      latency form of a draft pass: seconds by its requests, their rows and their tokens of context
    most_live  the model drafts nothing while more requests are live
    """

    def __init__(self, rates: Sequence[float], price: Form, most_live: int = 2**31):
        self.rates = np.array(rates, np.float64)
        self.price, self.most_live = price, most_live
        self._steps = 0

    # ---- TextEngine calls these ----

    def begin_text(self, text: np.ndarray) -> None:
        """Begin a step. text: all its responses, one after the other, int32 [tokens]."""
        self._text = text
        self._luck = np.random.default_rng([0, self._steps]).random(len(text))
        self._steps += 1

    def stand_at(self, places: np.ndarray, contexts: np.ndarray) -> None:
        """Set the places at which the next drafts begin. places: the places of the requests' next tokens in the text.
        contexts: their numbers of prompt and response tokens."""
        self._places, self._contexts = places, contexts
        self._now = 0.0

    # ---- das.models.hybrid calls these ----

    def clock(self) -> float:
        """Return the seconds that the passes of this round have taken so far."""
        return self._now

    def prepare(self, requests: Sequence[str]) -> float | None:
        """Return the seconds of quantizing, here 0; or None if there are too many requests for the model to draft."""
        return 0.0 if len(requests) <= self.most_live else None

    def observe(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """Do nothing, because the acceptance is given and not learned."""

    def begin(self, requests: Sequence[str]) -> None:
        """Begin a round of drafts for these requests. See ChainModel."""
        self._at = np.zeros(len(requests), np.int64)  # for each draft: the number of its tokens that the copy has read
        self._right = np.ones(len(requests), bool)  # for each draft: whether all these tokens are right
        self._first = True

    def run(self, among: np.ndarray, tokens: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Simulate a pass that drafts one more token for some requests. See ChainModel."""
        rows = sum(map(len, tokens)) + (len(among) if self._first else 0)
        self._first = False
        for i, own in zip(among.tolist(), tokens, strict=True):
            start = int(self._places[i] + self._at[i])
            self._right[i] &= np.array_equal(self._text[start : start + len(own)], own)
            self._at[i] += len(own)
        return self._pass(among, rows, self._at[among], self._right[among])

    def _pass(self, among: np.ndarray, rows: int, at: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Simulate a pass that drafts a token for each of these requests. Returns the tokens, and the probability that
        each is right.

        among: indices of the A requests. rows: rows of the pass. at: the number of tokens of each draft so far, int64
        [A]. right: whether all these tokens are right, bool [A].
        """
        live, tokens, context = np.array([len(among), rows, self._contexts[among].sum()], np.float64)
        self._now += float(self.price.predict(live, tokens, context))
        places = self._places[among] + at
        likely = self.rates[np.minimum(at, len(self.rates) - 1)]
        return np.where(right & (self._luck[places] < likely), self._text[places], WRONG), likely
