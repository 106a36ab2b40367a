"""Drafters that are models, alone or beside the history, on recorded text: SelfDrafter and HeadDrafter of the engine.

The model itself is not run. It is right at a place of the text if a random number of that place is below its measured
acceptance, so arms that draft there at other times find the same luck. Where it is wrong, and behind a wrong token, it
drafts a token that is in no text. Its passes take their time. The history, what both draft together
(das.drafter.chains, das.drafter.alternatives) and the learned price of a pass are those of the real engine.

Acceptance is alike at all places here. In truth it is lower where text is hard to foresee, and there the history is
silent and the model is asked.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from das.budget.draft_price import DraftPassPrice, DraftWork
from das.budget.latency_forms import Array, Form
from das.drafter import Drafts, HistoryDrafter, TreeDrafts
from das.drafter.alternatives import Alternatives
from das.drafter.chains import Chains
from das.drafter.saved import SavedText

WRONG = 2 * 10**6  # a token id that no text has


@dataclass(frozen=True)
class DraftPass:
    """A form: a draft pass takes this share of what a pass of the policy takes, and `request` more for each request."""

    form: Form
    share: float
    request: float = 0.0  # seconds

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.share * self.form.predict(live, tokens, context) + self.request * live


class ModelOnText(ABC):
    """Drafts chains for the requests of one simulated engine.

    rates      rates[j] = P(token j of a draft is right | the tokens before it are); the last one holds for later tokens
    price      seconds of a draft pass, by its requests, their rows and tokens of context
    host       seconds that each draft pass takes besides
    passes     the most passes that draft for one target pass
    worth      seconds that one more emitted token saves; nan: unknown, and every pass is made
    history    drafts, too; None: nothing does
    most_live  a toggle: the model drafts nothing while more requests than that are live
    """

    def __init__(
        self,
        rates: Sequence[float],
        price: Form,
        host: float,
        passes: int,
        worth: Callable[[], float],
        history: HistoryDrafter | None,
        most_live: int = 2**31,
        seed: int = 0,
    ):
        self.rates = np.array(rates, np.float64)
        self.price, self.host, self.passes, self.worth, self.history = price, host, passes, worth, history
        self.window = 0 if history is None else history.window
        self.most_live, self.seed = most_live, seed
        self._learned = DraftPassPrice()
        self._passes_made: list[tuple[int, float]] = []
        self._usual = 1.0  # as in the engine
        self._steps = self._tick = 0

    # ---- what TextEngine calls ----

    def begin_text(self, text: np.ndarray) -> None:
        """The responses of a step, int32 [tokens], all one after the other."""
        self._text = text
        self._luck = np.random.default_rng([self.seed, self._steps]).random(len(text))
        self._steps += 1

    def stand_at(self, places: np.ndarray, contexts: np.ndarray) -> None:
        """Where the coming drafts begin. places: of each request's next token in the text. contexts: its tokens."""
        self._places, self._contexts = places, contexts

    def handed_out(self) -> DraftWork:
        """The passes of the last round of drafts."""
        work = DraftWork(self._passes_made)
        self._passes_made = []
        return work

    # ---- what DraftRound calls ----

    @property
    def history_tick(self) -> int:
        """The history's tick."""
        return self._tick if self.history is None else self.history.history_tick

    @property
    def history_tokens(self) -> int:
        """Response tokens in the history."""
        return 0 if self.history is None else self.history.history_tokens

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray) -> None:
        """A request joins the batch."""
        if self.history is not None:
            self.history.begin(request, problem, prompt)

    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Tokens that a request brings along."""
        if self.history is not None:
            self.history.observe(request, tokens)

    def observe_batch(self, requests: Sequence[str], tokens: Sequence[Sequence[int] | np.ndarray]) -> None:
        """What the requests emitted in the last pass."""
        if self.history is not None:
            self.history.observe_batch(requests, tokens)

    @abstractmethod
    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """Drafts of at most limits[i] tokens, as the engine's drafter makes them."""

    def propose_tree(
        self,
        requests: Sequence[str],
        nodes: Sequence[int],
        floors: Sequence[float] | None = None,
        branch_floor: float = 0.0,
    ) -> TreeDrafts:
        """Models draft chains only."""
        raise NotImplementedError("drafts of models do not branch")

    def end(self, request: str, keep: bool = True) -> None:
        """A request finished."""
        if self.history is not None:
            self.history.end(request, keep)

    def end_step(self, history_tick: int) -> None:
        """Move the history's window."""
        self._tick = history_tick
        if self.history is not None:
            self.history.end_step(history_tick)

    def add_history(self, responses: Sequence[SavedText]) -> None:
        """Responses that other engines finished."""
        if self.history is not None:
            self.history.add_history(responses)

    def save(self, path: Path) -> None:
        """Simulated drafters are not kept."""
        raise NotImplementedError

    def load(self, path: Path) -> None:
        """Simulated drafters are not kept."""
        raise NotImplementedError

    # ---- drafting ----

    def _draw(self, among: np.ndarray, at: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A token of the model for each of these requests, and the probability that it is right.

        at: tokens of each request's draft so far. right: whether all of them come next; changed in place.
        """
        places = self._places[among] + at[among]
        likely = self.rates[np.minimum(at[among], len(self.rates) - 1)]
        right[among] &= self._luck[places] < likely
        return np.where(right[among], self._text[places], WRONG), likely

    def _pays(self, tokens: float, seconds: float) -> bool:
        """Whether passes that take so long are worth it if they let the policy emit so many tokens more."""
        worth = self.worth()
        if math.isnan(worth) or tokens * worth >= seconds:
            return True
        self._learned.fade()
        return False

    def _note_pass(self, among: np.ndarray, rows: int, likely: np.ndarray) -> None:
        """A pass of so many rows drafted tokens that are accepted with these probabilities."""
        live, tokens, context = np.array([len(among), rows, self._contexts[among].sum()], np.float64)
        seconds = self.host + float(self.price.predict(live, tokens, context))
        self._usual += 0.02 * (float(likely.mean()) - self._usual)
        self._passes_made.append((rows, seconds))
        self._learned.observe(rows, seconds)

    def _is_next(self, i: int, at: int, tokens: Sequence[int]) -> bool:
        """Whether these tokens are those of request i's text, `at` tokens from here on."""
        start = int(self._places[i]) + at
        return bool(np.array_equal(self._text[start : start + len(tokens)], tokens))


class SelfDraftOnText(ModelOnText):
    """The history and the model in turns (das.engine.drafters.self_draft); without a history, the model alone."""

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """As ModelOnText has it."""
        chains = Chains(limits, floors)
        every = np.arange(len(requests))
        if self.history is not None:
            chains.take(every, self.history.propose_batch(requests, limits, floors))
        if len(requests) <= self.most_live:
            self._draft(requests, chains)
        return chains.drafts()

    def _draft(self, requests: Sequence[str], chains: Chains) -> None:
        drafted, _, _ = chains.behind(np.arange(len(requests)))
        at = np.array([len(own) for own in drafted])  # tokens of each chain
        rows = 1 + at  # that the next pass computes: the last token and the history's
        right = np.array([self._is_next(i, 0, own) for i, own in enumerate(drafted)])
        while True:
            among, gain = chains.open(self._usual)
            if not len(among) or len(self._passes_made) == self.passes:
                return
            num_rows = int(rows[among].sum())
            if not self._pays(gain, self._learned.seconds(num_rows)):
                return
            tokens, likely = self._draw(among, at, right)
            chains.append(among, tokens, likely)
            at[among], rows[among] = at[among] + 1, 1
            if self.history is not None:
                own, room, chain_floors = chains.behind(among)
                behind = self.history.propose_behind([requests[i] for i in among.tolist()], own, room, chain_floors)
                for i, taken in zip(among.tolist(), chains.take(among, behind), strict=True):
                    right[i] &= self._is_next(i, int(at[i]), taken)
                    at[i] += len(taken)
                    rows[i] += len(taken)
            self._note_pass(among, num_rows, likely)


class HeadOnText(ModelOnText):
    """A draft head where it is expected to do better than the history (das.engine.drafters.head_draft)."""

    _behind = 0.0  # tokens that the history usually adds to accepted ones of the head

    def begin_text(self, text: np.ndarray) -> None:
        """As ModelOnText has it."""
        super().begin_text(text)
        self._read: dict[str, int] = {}  # tokens of each request's context that the head has read

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """As ModelOnText has it."""
        assert self.history is not None
        alternatives = Alternatives(limits, floors, self.history.propose_batch(requests, limits, floors))
        at, right = np.zeros(len(requests), np.int64), np.ones(len(requests), bool)
        for left in range(self.passes if len(requests) <= self.most_live else 0, 0, -1):
            among, gain = alternatives.open(self._value(left))
            if not len(among):
                break
            num_rows = len(among) if self._passes_made else self._num_unread(requests, among)
            if not self._pays(gain, self._learned.seconds(num_rows) + (left - 1) * self._learned.seconds(len(among))):
                break
            if not self._passes_made:
                for i in among.tolist():
                    self._read[requests[i]] = int(self._contexts[i])
            tokens, likely = self._draw(among, at, right)
            alternatives.append(tokens, likely)
            at[among] += 1
            self._ask_history(requests, alternatives)
            self._note_pass(among, num_rows, likely)
        return alternatives.drafts()

    def _num_unread(self, requests: Sequence[str], among: np.ndarray) -> int:
        """Tokens that the head must read before it drafts for these requests."""
        return sum(int(self._contexts[i]) - self._read.get(requests[i], 0) for i in among.tolist())

    def _value(self, passes: int) -> float:
        """Tokens that so many tokens of the head, and the history behind them, are usually expected to emit."""
        reach = self._usual ** np.arange(1, passes + 1)
        return float(reach.sum() + reach[-1] * self._behind)

    def _ask_history(self, requests: Sequence[str], alternatives: Alternatives) -> None:
        """Let the history draft behind the head's tokens."""
        assert self.history is not None
        among, tokens, room, floors = alternatives.behind()
        if not len(among):
            return
        drafts = self.history.propose_behind([requests[i] for i in among.tolist()], tokens, room, floors)
        behind = alternatives.offer(drafts)
        self._behind += 0.02 * (float(behind.mean()) - self._behind)
