"""InTurns: a model drafts alone, or in turns with the history (das.drafter.chains). Methods: self_draft, das_self."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from das.drafter import Drafts, HistoryDrafter
from das.drafter.chains import Chains
from das.model_drafts.drafter import DraftingModel, Drawn, ModelDrafter


class ChainModel(DraftingModel, Protocol):
    """A draft model that can continue any tokens. It must compute these tokens first, which costs time."""

    def begin(self, requests: Sequence[str]) -> None:
        """Begin a round of drafts that continue the current text of these requests."""

    def run(self, among: np.ndarray, tokens: Sequence[Sequence[int]]) -> Drawn:
        """Draft one more token for some of the requests. among: indices into the requests of `begin`, int64 [A].

        tokens: the tokens that each draft got since the request's last draft pass: first the token that pass drafted,
        then the history's tokens.
        """


class InTurns(ModelDrafter):
    """Makes chains (drafts without branches): the history's tokens where it is confident, elsewhere the model's.

    passes          the most model passes for one target pass; None: any number
    worth, history  see ModelDrafter

    Each pass drafts one token for all requests at once. Passes continue while their tokens should save more time than
    they take.
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
        """See ModelDrafter."""
        self.handed_out()  # drops the work of an earlier pass that nobody has asked for
        if self.history is None:
            alone = Chains(limits, floors).drafts()
        else:
            alone = self.history.propose_batch(requests, limits, floors)
        # This check must be cheap: if the model does not pay, nothing else is done for it. A pass is worth most if
        # it drafts for every request and the history has no drafts.
        if not self._pays(len(requests) * self._usual, self.price.seconds(len(requests))):
            self._stop()
            return alone
        chains = Chains(limits, floors)
        pending = chains.take(np.arange(len(requests)), alone)
        return chains.drafts() if self._draft(requests, chains, pending) else alone

    def _draft(self, requests: Sequence[str], chains: Chains, pending: list[list[int]]) -> bool:
        """Let model and history extend the chains in turn, as long as a draft pass saves time. Returns False if the
        model computed a value that is not finite.

        pending: tokens of each chain that no pass has computed yet; changed in place.
        """
        begun = False
        while True:
            among, gain = chains.open(self._usual)
            if not len(among) or len(self._passes_made) == self._most_passes:
                return True
            tokens = [pending[i] for i in among.tolist()]
            # The first pass also computes the last token of each request's text.
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
                texts, room, floors = chains.behind(among)
                drafts = self.history.propose_behind([requests[i] for i in among.tolist()], texts, room, floors)
                for i, taken in zip(among.tolist(), chains.take(among, drafts), strict=True):
                    pending[i] += taken
            self._note_pass(num_rows, self.model.clock() - start, drawn[1])
