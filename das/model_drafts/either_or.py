"""A draft head where it is expected to do better than the history (das.drafter.alternatives): arm das_eagle3."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from das.drafter import Drafts, HistoryDrafter
from das.drafter.alternatives import Alternatives
from das.model_drafts.drafter import DraftingModel, Drawn, ModelDrafter


class HeadModel(DraftingModel, Protocol):
    """A head: it must read all of a request's text, and goes on behind its own tokens alone."""

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


class EitherOr(ModelDrafter):
    """Drafts chains: what the history drafts, or up to `passes` tokens of the head and what the history drafts behind.

    passes: at least 1. worth, history: as ModelDrafter has them. The history drafts first, which takes no pass of a
    model. A depth is computed for all requests that the head is expected to draft better for, at once, as long as its
    tokens are expected to save more time than the passes take.
    """

    model: HeadModel
    history: HistoryDrafter

    def __init__(self, model: HeadModel, passes: int, worth: Callable[[], float], history: HistoryDrafter):
        super().__init__(model, passes, worth, history)
        self._passes = passes
        self._behind = 0.0  # tokens that the history usually adds to accepted ones of the head

    def end(self, request: str, keep: bool = True) -> None:
        """As ModelDrafter has it."""
        super().end(request, keep)
        self.model.forget(request)

    def state(self) -> dict[str, np.ndarray]:
        """As ModelDrafter has it."""
        return {**super().state(), "behind": np.array(self._behind)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """As ModelDrafter has it."""
        super().restore(state)
        self._behind = float(state["behind"])

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """As ModelDrafter has it."""
        alone = self.history.propose_batch(requests, limits, floors)
        if not self._prepare(requests) or not self._may_pay(len(requests)):
            return alone
        alternatives = Alternatives(limits, floors, alone)
        self._draft(requests, alternatives)
        return alternatives.drafts()

    def _may_pay(self, num_requests: int) -> bool:
        """Whether the head would pay if the history had nothing for any request.

        Declining must be cheap, because it is the rule where the head does not pay.
        """
        passes = self._passes
        return self._pays(num_requests * self._value(passes), passes * self.price.seconds(num_requests))

    def _draft(self, requests: Sequence[str], alternatives: Alternatives) -> None:
        """Let the head draft, and the history behind it."""
        for left in range(self._passes, 0, -1):
            among, gain = alternatives.open(self._value(left))
            if not len(among):
                return
            num_rows, later = len(among), (left - 1) * self.price.seconds(len(among))
            if not self._pays(gain, self.price.seconds(num_rows) + later):
                return
            first = not self._passes_made
            if first:
                num_rows = self.model.num_unread(requests, among)
                if not self._pays(gain, self.price.seconds(num_rows) + later):
                    return
            start = self.model.clock()
            drawn = self.model.read(among) if first else self.model.go_on(among, alternatives.last_tokens())
            if drawn is None:
                return
            alternatives.append(*drawn)
            self._ask_history(requests, alternatives)
            self._note_pass(num_rows, self.model.clock() - start, drawn[1])

    def _value(self, passes: int) -> float:
        """Tokens that so many tokens of the head, and the history behind them, are usually expected to emit."""
        reach = self._usual ** np.arange(1, passes + 1)
        return float(reach.sum() + reach[-1] * self._behind)

    def _ask_history(self, requests: Sequence[str], alternatives: Alternatives) -> None:
        """Let the history draft behind the head's tokens."""
        among, tokens, room, floors = alternatives.behind()
        if not len(among):
            return
        drafts = self.history.propose_behind([requests[i] for i in among.tolist()], tokens, room, floors)
        behind = alternatives.offer(drafts)
        self._behind += 0.02 * (float(behind.mean()) - self._behind)
