"""A draft head where it is expected to do better than the history (das.drafter.alternatives): arm das_eagle3."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from das.drafter import Drafts, HistoryDrafter
from das.drafter.alternatives import Alternatives
from das.model_drafts.drafter import DraftingModel, Drawn, ModelDrafter

logger = logging.getLogger("vllm.das")

LEAST_SAVED = 0.03  # share of a rollout's time: a head that saves less rests. It costs the small policy 5 % of a pass
MAX_REST = 8  # rollouts


class HeadModel(DraftingModel, Protocol):
    """A head: it must read all of a request's text, and goes on behind its own tokens alone."""

    def able(self, requests: Sequence[str]) -> np.ndarray | None:
        """For which of the requests the head can draft, bool [R]; None: for all of them. It cannot where it does not
        know enough of the text.
        """

    def num_unread(self, requests: Sequence[str], among: np.ndarray) -> int:
        """Tokens that `read` would compute for some of the requests, which begin to draft now. among: int64 [A], as
        indices into them.
        """

    def read(self, among: np.ndarray) -> Drawn:
        """Read what the head has not read of these requests, and draft a token behind it."""

    def go_on(self, among: np.ndarray, tokens: np.ndarray) -> Drawn:
        """A token behind the one that the pass before drafted. tokens: these, int64 [A]."""

    def forget(self, request: str) -> None:
        """A request finished: its text will not be read."""

    def rest(self, resting: bool) -> None:
        """Whether nothing will be asked for until the next call, so that no text needs to wait for the head."""


class EitherOr(ModelDrafter):
    """Drafts chains: what the history drafts, or up to `passes` tokens of the head and what the history drafts behind.

    passes: the most passes of the head that draft for one target pass, at least 1. worth, history: as ModelDrafter has
    them. The history drafts first, which takes no pass of a model. A depth is computed for all requests that the head
    is expected to draft better for, at once, as long as its tokens are expected to save more time than the passes take.

    A head that saves next to nothing in a rollout rests in the next ones: 1, then 2, 4 and MAX_REST, until it saves
    again. For what it may have to read costs time in every pass of the policy, asked or not.
    """

    model: HeadModel
    history: HistoryDrafter

    def __init__(self, model: HeadModel, passes: int, worth: Callable[[], float], history: HistoryDrafter):
        super().__init__(model, worth, history)
        self._most_passes = passes
        self._behind = 0.0  # tokens that the history usually adds to accepted ones of the head
        self._emitted = 0  # tokens in this rollout, since it is known what a token is worth
        self._saved = 0.0  # of these, so many take as long as the head is expected to have saved
        self._is_worth_known = False  # since the rollout began
        self._rests = 0  # rollouts until the head is awake
        self._last_rest = 0  # rollouts; 0: it has saved enough since

    @property
    def is_resting(self) -> bool:
        """Whether the head drafts nothing in this rollout."""
        return self._rests > 0

    def observe_batch(self, requests: Sequence[str], tokens: Sequence[Sequence[int] | np.ndarray]) -> None:
        """As ModelDrafter has it."""
        super().observe_batch(requests, tokens)
        if self._is_worth_known:
            self._emitted += sum(map(len, tokens))

    def end_step(self, history_tick: int) -> None:
        """As ModelDrafter has it."""
        super().end_step(history_tick)
        if self._rests:
            self._rests -= 1
        elif self._emitted:
            saved = self._saved / self._emitted
            pays = saved >= LEAST_SAVED
            self._rests = self._last_rest = 0 if pays else min(max(1, 2 * self._last_rest), MAX_REST)
            if self._rests:
                logger.info(
                    "speculation: the draft head rests for %d rollouts; it saved some %.1f %% of this one's time",
                    self._rests,
                    100 * max(saved, 0.0),
                )
        self._emitted, self._saved, self._is_worth_known = 0, 0.0, False
        self.model.rest(self.is_resting)

    def end(self, request: str, keep: bool = True) -> None:
        """As ModelDrafter has it."""
        super().end(request, keep)
        self.model.forget(request)

    def state(self) -> dict[str, np.ndarray]:
        """As ModelDrafter has it."""
        rest = np.array([self._rests, self._last_rest])
        return {**super().state(), "behind": np.array(self._behind), "rest": rest}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """As ModelDrafter has it."""
        super().restore(state)
        self._behind = float(state["behind"])
        self._rests, self._last_rest = map(int, state.get("rest", (0, 0)))  # old files lack it
        self.model.rest(self.is_resting)

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """As ModelDrafter has it."""
        self._begin_round()
        alone = self.history.propose_batch(requests, limits, floors)
        if self.is_resting or not self._prepare(requests):
            return alone
        if not (passes := self._best_passes(len(requests))):
            self._stop()
            return alone
        alternatives = Alternatives(limits, floors, alone, self.model.able(requests))
        self._draft(requests, alternatives, passes)
        if self._passes_made and not math.isnan(worth := self.worth()):
            self._saved += alternatives.gained() - sum(seconds for _, seconds in self._passes_made) / worth
        return alternatives.drafts()

    def _best_passes(self, num_requests: int) -> int:
        """How many passes of the head would save most time if the history had nothing for any request; 0: none pays.

        Declining must be cheap, because it is the rule where the head does not pay.
        """
        worth = self.worth()
        if math.isnan(worth):
            return self._most_passes
        self._is_worth_known = True
        tokens = num_requests * self._values(self._most_passes)
        saved_s = tokens * worth - np.arange(1, self._most_passes + 1) * self.price.seconds(num_requests)
        best = int(saved_s.argmax())
        return best + 1 if saved_s[best] >= 0 else 0

    def _draft(self, requests: Sequence[str], alternatives: Alternatives, passes: int) -> None:
        """Let the head draft so many tokens, and the history behind it."""
        for left in range(passes, 0, -1):
            among, gain = alternatives.open(float(self._values(left)[-1]))
            if not len(among):
                return
            num_rows, later = len(among), (left - 1) * self.price.seconds(len(among))
            if not self._pays(gain, self.price.seconds(num_rows) + later):
                self._stop()
                return
            first = not self._passes_made
            if first:
                num_rows = self.model.num_unread(requests, among)
                if not self._pays(gain, self.price.seconds(num_rows) + later):
                    self._stop()
                    return
            start = self.model.clock()
            drawn = self.model.read(among) if first else self.model.go_on(among, alternatives.last_tokens())
            if drawn is None:
                return
            alternatives.append(*drawn)
            self._ask_history(requests, alternatives)
            self._note_pass(num_rows, self.model.clock() - start, drawn[1])

    def _values(self, passes: int) -> np.ndarray:
        """Tokens that 1 to `passes` of the head's, and the history behind them, are usually expected to emit [P]."""
        reach = self._usual ** np.arange(1, passes + 1)
        values: np.ndarray = np.cumsum(reach) + reach * self._behind
        return values

    def _ask_history(self, requests: Sequence[str], alternatives: Alternatives) -> None:
        """Let the history draft behind the head's tokens."""
        among, tokens, room, floors = alternatives.behind()
        if not len(among):
            return
        drafts = self.history.propose_behind([requests[i] for i in among.tolist()], tokens, room, floors)
        behind = alternatives.offer(drafts)
        self._behind += 0.02 * (float(behind.mean()) - self._behind)
