"""Models that draft, on recorded text: what das.model_drafts asks in place of a model in an engine.

The model itself is not run. It is right at a place of the text if a random number of that place is below its measured
acceptance, so arms that draft there at other times find the same luck. Where it is wrong, and behind a wrong token, it
drafts a token that is in no text. Its passes take their time. The history, what both draft together and the learned
price of a pass are those of the real engine.

Acceptance is alike at all places here. In truth it is lower where text is hard to foresee, and there the history is
silent and the model is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from das.budget.latency_forms import Array, Form

WRONG = 2 * 10**6  # a token id that no text has


@dataclass(frozen=True)
class DraftPass:
    """A form: a draft pass takes this share of what a pass of the policy takes, and `request` more for each request."""

    form: Form
    share: float
    request: float = 0.0  # seconds

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.share * self.form.predict(live, tokens, context) + self.request * live


class ModelOnText:
    """What a copy of the policy and a head have in common (das.model_drafts.drafter.DraftingModel).

    rates      rates[j] = P(token j of a draft is right | the tokens before it are); the last one holds for later tokens
    price      seconds of a draft pass, by its requests, their rows and tokens of context
    host       seconds that each draft pass takes besides
    most_live  a toggle: the model drafts nothing while more requests than that are live
    """

    def __init__(self, rates: Sequence[float], price: Form, host: float = 0.0, most_live: int = 2**31, seed: int = 0):
        self.rates = np.array(rates, np.float64)
        self.price, self.host, self.most_live, self.seed = price, host, most_live, seed
        self._steps = 0

    # ---- what TextEngine calls ----

    def begin_text(self, text: np.ndarray) -> None:
        """The responses of a step, int32 [tokens], all one after the other."""
        self._text = text
        self._luck = np.random.default_rng([self.seed, self._steps]).random(len(text))
        self._steps += 1

    def stand_at(self, places: np.ndarray, contexts: np.ndarray) -> None:
        """Where the coming drafts begin. places: of each request's next token in the text. contexts: its tokens."""
        self._places, self._contexts = places, contexts
        self._now = 0.0

    # ---- what das.model_drafts asks ----

    def clock(self) -> float:
        """Seconds that the passes of this round have taken."""
        return self._now

    def prepare(self, requests: Sequence[str]) -> float | None:
        """Whether it may draft for so many requests. Nothing is quantized here."""
        return 0.0 if len(requests) <= self.most_live else None

    def observe(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """Acceptance is given: nothing is learned."""

    def _pass(self, among: np.ndarray, rows: int, at: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A pass drafts a token for each of these requests. Returns the tokens, and the probability that each is right.

        at: tokens of each draft so far, int64 [A]. right: whether all of them come next, bool [A].
        """
        live, tokens, context = np.array([len(among), rows, self._contexts[among].sum()], np.float64)
        self._now += self.host + float(self.price.predict(live, tokens, context))
        places = self._places[among] + at
        likely = self.rates[np.minimum(at, len(self.rates) - 1)]
        return np.where(right & (self._luck[places] < likely), self._text[places], WRONG), likely


class CopyOnText(ModelOnText):
    """A copy of the policy, as das.model_drafts.in_turns asks it. In the engine: das.engine.drafters.self_draft."""

    def begin(self, requests: Sequence[str]) -> None:
        """As ChainModel says."""
        self._at = np.zeros(len(requests), np.int64)  # tokens of each draft that passes have computed
        self._right = np.ones(len(requests), bool)  # whether all of them come next
        self._first = True

    def run(self, among: np.ndarray, tokens: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """As ChainModel says."""
        rows = sum(map(len, tokens)) + (len(among) if self._first else 0)
        self._first = False
        for i, own in zip(among.tolist(), tokens, strict=True):
            start = int(self._places[i] + self._at[i])
            self._right[i] &= np.array_equal(self._text[start : start + len(own)], own)
            self._at[i] += len(own)
        return self._pass(among, rows, self._at[among], self._right[among])


class HeadOnText(ModelOnText):
    """A draft head, as das.model_drafts.either_or asks it. In the engine: das.engine.drafters.head_draft."""

    def able(self, requests: Sequence[str]) -> None:
        """As HeadModel says, for all requests."""

    def rest(self, resting: bool) -> None:
        """As HeadModel says. Nothing waits for this one."""

    def begin_text(self, text: np.ndarray) -> None:
        """As ModelOnText says."""
        super().begin_text(text)
        self._read: dict[str, int] = {}  # tokens of each request's context that the head has read

    def num_unread(self, requests: Sequence[str], among: np.ndarray) -> int:
        """As HeadModel says."""
        self._requests = requests
        return sum(int(self._contexts[i]) - self._read.get(requests[i], 0) for i in among.tolist())

    def read(self, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As HeadModel says."""
        rows = self.num_unread(self._requests, among)
        for i in among.tolist():
            self._read[self._requests[i]] = int(self._contexts[i])
        self._depth = 0
        self._right = np.ones(len(self._requests), bool)
        return self._pass(among, rows, np.zeros(len(among), np.int64), self._right[among])

    def go_on(self, among: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As HeadModel says."""
        self._right[among] &= self._text[self._places[among] + self._depth] == tokens
        self._depth += 1
        return self._pass(among, len(among), np.full(len(among), self._depth), self._right[among])

    def forget(self, request: str) -> None:
        """Nothing is kept of a request but a number."""
