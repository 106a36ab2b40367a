"""A model drafts alone, or the history and the model in turns (das.drafter.chains): self-drafts, arm das_self."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from das.drafter import Drafts, HistoryDrafter
from das.drafter.chains import Chains
from das.model_drafts.drafter import DraftingModel, Drawn, ModelDrafter


class ChainModel(DraftingModel, Protocol):
    """A model that can go on behind any tokens, at the price of computing them."""

    def begin(self, requests: Sequence[str]) -> None:
        """The coming passes draft for these requests, behind their text as it is now."""

    def run(self, among: np.ndarray, tokens: Sequence[Sequence[int]]) -> Drawn:
        """A token behind the drafts of some requests that began, int64 [A], as indices into those.

        tokens: what each draft has got since the request's last pass: the token that this pass drafted, if there was
        one, and what the history drafted.
        """


class InTurns(ModelDrafter):
    """Drafts chains: the history's tokens where it is sure enough, the model's between them.

    passes: the most passes of the model that draft for one target pass; None: any number. worth, history: as
    ModelDrafter has them. A depth is computed for all requests at once, as long as its tokens are expected to save more
    time than the pass takes.
    """

    model: ChainModel

    def __init__(
        self, model: ChainModel, passes: int | None, worth: Callable[[], float], history: HistoryDrafter | None = None
    ):
        super().__init__(model, worth, history)
        self._most_passes = passes

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """As ModelDrafter has it."""
        self._begin_round()
        alone = None if self.history is None else self.history.propose_batch(requests, limits, floors)
        # Declining must be cheap, because it is the rule where the model does not pay. No pass is worth more than one
        # that drafts for every request where the history has nothing.
        if not self._pays(len(requests) * self._usual, self.price.seconds(len(requests))):
            self._stop()
            return Chains(limits, floors).drafts() if alone is None else alone
        chains = Chains(limits, floors)
        pending: list[list[int]] = [[] for _ in requests]
        if alone is not None:
            pending = chains.take(np.arange(len(requests)), alone)
        if not self._draft(requests, chains, pending):
            return Chains(limits, floors).drafts() if alone is None else alone
        return chains.drafts()

    def _draft(self, requests: Sequence[str], chains: Chains, pending: list[list[int]]) -> bool:
        """Let the model and the history lengthen the chains in turn, as long as a pass pays. Before the first one the
        model gets ready. Returns False if it broke.

        pending: the tokens of each chain that no pass has computed; changed in place.
        """
        begun = False
        while True:
            among, gain = chains.open(self._usual)
            if not len(among) or len(self._passes_made) == self._most_passes:
                return True
            tokens = [pending[i] for i in among.tolist()]
            # The first pass computes the last token of each request's text, too.
            num_rows = sum(map(len, tokens)) + (0 if begun else len(among))
            if not self._pays(gain, self.price.seconds(num_rows)):
                self._stop()
                return True
            if not begun and not self._prepare(requests):
                return True
            start = self.model.clock()
            if not begun:
                self.model.begin(requests)
                begun = True
            drawn = self.model.run(among, tokens)
            if drawn is None:
                return False
            chains.append(among, *drawn)
            for i, token in zip(among.tolist(), drawn[0].tolist(), strict=True):
                pending[i] = [token]
            if self.history is not None:
                self._ask_history(self.history, requests, chains, among, pending)
            self._note_pass(num_rows, self.model.clock() - start, drawn[1])

    def _ask_history(
        self,
        history: HistoryDrafter,
        requests: Sequence[str],
        chains: Chains,
        among: np.ndarray,
        pending: list[list[int]],
    ) -> None:
        """Let the history lengthen these chains behind what the model drafted."""
        tokens, room, floors = chains.behind(among)
        drafts = history.propose_behind([requests[i] for i in among.tolist()], tokens, room, floors)
        for i, taken in zip(among.tolist(), chains.take(among, drafts), strict=True):
            pending[i] += taken
