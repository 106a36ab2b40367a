"""EitherOr drafts with a head (a small draft model) for the requests where the head's draft should beat the draft from
the history of past responses (das.drafter.alternatives). Used by the method das_eagle3."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from das.drafter import Drafts, HistoryDrafter
from das.drafter.alternatives import Alternatives
from das.model_drafts.drafter import DraftingModel, Drawn, ModelDrafter

logger = logging.getLogger("vllm.das")

LEAST_SAVED = 0.03  # a head rests if it saves less than this share of a rollout's time
MAX_REST = 8  # the longest rest, in rollouts


class HeadModel(DraftingModel, Protocol):
    """A draft head. It must read the whole text of a request, and it can continue only its own drafts."""

    def able(self, requests: Sequence[str]) -> np.ndarray | None:
        """Returns, for each request, whether the head has text to draft from, bool [R]; None: it has for all
        requests."""

    def num_unread(self, requests: Sequence[str], among: np.ndarray) -> int:
        """Begin a round of drafts. Returns the number of tokens that `read` would compute. among: indices into requests
        [A]."""

    def read(self, among: np.ndarray) -> Drawn:
        """Read the unread text of these requests, and draft one token for each. among: see `num_unread`."""

    def go_on(self, among: np.ndarray, tokens: np.ndarray) -> Drawn:
        """Draft the next token of these requests. tokens: the tokens that the previous pass drafted, int64 [A]."""

    def forget(self, request: str) -> None:
        """Discard the unread text of a finished request."""

    def rest(self, resting: bool) -> None:
        """Start or end a rest. A resting head gets no calls and need not collect text."""


class EitherOr(ModelDrafter):
    """Drafts, for each request, either the history's draft, or up to `passes` tokens of the head that the history
    continues. Its drafts are chains: they do not branch.

    passes          the most head passes for one target pass, at least 1
    worth, history  see ModelDrafter

    The history drafts first, because its drafts need no pass of a model. Then each head pass drafts one token for all
    requests that the head should improve. Head passes continue while their tokens should save more time than they take.

    The engine must keep text ready for a head, which costs time in every pass. So a head that saved almost nothing in a
    rollout rests in the next one. The first rest in a row lasts 1 rollout, the next ones 2, 4 and then MAX_REST.
    """

    model: HeadModel
    history: HistoryDrafter

    def __init__(self, model: HeadModel, passes: int, worth: Callable[[], float], history: HistoryDrafter):
        super().__init__(model, worth, history)
        self._most_passes = passes
        self._behind = 0.0  # number of tokens that the history usually adds after accepted tokens of the head
        self._emitted = 0  # tokens emitted in this rollout while the worth of a token was known
        self._saved = 0.0  # the head's expected savings in this rollout, in emitted tokens
        self._is_worth_known = False  # whether the worth of a token was known in this rollout
        self._rests = 0  # rollouts left to rest
        self._last_rest = 0  # length of the last rest in rollouts; 0 when the head has saved enough since

    @property
    def is_resting(self) -> bool:
        """True if the head drafts nothing in this rollout."""
        return self._rests > 0

    def observe_batch(
        self,
        requests: Sequence[str],
        tokens: Sequence[Sequence[int] | np.ndarray],
        remembered: np.ndarray | None = None,
    ) -> None:
        """See ModelDrafter."""
        super().observe_batch(requests, tokens, remembered)
        if self._is_worth_known:
            self._emitted += sum(map(len, tokens))

    def end_step(self, history_tick: int) -> None:
        """See ModelDrafter."""
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
        """See ModelDrafter."""
        super().end(request, keep)
        self.model.forget(request)

    def state(self) -> dict[str, np.ndarray]:
        """See ModelDrafter."""
        rest = np.array([self._rests, self._last_rest])
        return {**super().state(), "behind": np.array(self._behind), "rest": rest}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """See ModelDrafter."""
        super().restore(state)
        self._behind = float(state["behind"])
        self._rests, self._last_rest = map(int, state.get("rest", (0, 0)))  # older files lack the entry
        self.model.rest(self.is_resting)

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """See ModelDrafter."""
        self.handed_out()  # drops the work of an earlier pass that nobody has asked for
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
        """Returns the number of head passes that would save the most time if the history had no drafts; 0 if none saves
        time.

        It must be cheap to compute: if the head cannot save time, nothing else is computed for the head.
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
        """Let the head draft up to `passes` tokens per request, and let the history continue them."""
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
        """Returns how many more tokens a request is expected to emit if the head drafts 1, 2 ... `passes` tokens and
        the history continues them, float64 [passes]."""
        reach = self._usual ** np.arange(1, passes + 1)
        values: np.ndarray = np.cumsum(reach) + reach * self._behind
        return values

    def _ask_history(self, requests: Sequence[str], alternatives: Alternatives) -> None:
        """Let the history continue the tokens that the head has drafted."""
        among, tokens, room, floors = alternatives.behind()
        if not len(among):
            return
        drafts = self.history.propose_behind([requests[i] for i in among.tolist()], tokens, room, floors)
        behind = alternatives.offer(drafts)
        self._behind += 0.02 * (float(behind.mean()) - self._behind)
