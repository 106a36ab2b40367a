"""InTurns: a model drafts alone, or in turns with the history (das.drafter.chains). Methods: self_draft, das_self."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from das.budget import DraftWork, TargetPass
from das.budget.latency import LatencyModel
from das.drafter import Draft, Drafts, HistoryDrafter, RememberingDrafter
from das.drafter.chains import Chains
from das.drafter.distributions import Distributions
from das.drafter.saved import SavedText

FADE = 0.99  # each round without a draft pass lowers the price by this factor: after 70, one is tried at half of it
MAX_PATIENCE = 32  # trials that do not pay slow the fall of the price, at most by this factor
# The result of a draft pass: drafted tokens, int64 [A], and P(token is accepted | tokens before it are), float64 [A].
# None: the model computed non-finite values and stops drafting.
Drawn = tuple[np.ndarray, np.ndarray] | None


class ChainModel(Protocol):
    """A draft model for the requests of one engine. It can continue any tokens, and must compute these first, which
    costs time."""

    def clock(self) -> float:
        """Returns the time in seconds. Times of draft passes are differences of such times."""

    def prepare(self, requests: Sequence[str]) -> float | None:
        """Prepare drafts for these requests. Returns the seconds spent on quantizing weights (0 if nothing was
        quantized), or None if the model may not draft."""

    def observe(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """Take in the tokens emitted by the pass that verified the last drafts. No requests: the rollout is over."""

    def begin(self, requests: Sequence[str]) -> None:
        """Begin a round of drafts that continue the current text of these requests."""

    def run(self, among: np.ndarray, tokens: Sequence[Sequence[int]]) -> Drawn:
        """Draft one more token for some of the requests. among: indices into the requests of `begin`, int64 [A].

        tokens: the tokens that each draft got since the request's last draft pass: first the token that pass drafted,
        then the history's tokens.
        """


class InTurns(RememberingDrafter):
    """Makes chains (drafts without branches): the history's tokens where it is confident, elsewhere the model's.

    passes    the most model passes for one target pass; None: any number
    worth     function that returns the seconds saved by one more emitted token; nan while unknown
    history   the history drafter; None: only the model drafts

    Each pass drafts one token for all requests at once. Passes continue while their tokens should save more time than
    they take.
    """

    def __init__(
        self, model: ChainModel, passes: int | None, worth: Callable[[], float], history: HistoryDrafter | None = None
    ):
        self.model = model
        self.worth = worth
        self.history = history
        self.window = 0 if history is None else history.window
        self.remembers = history is not None and history.remembers
        self.prices = LatencyModel()  # of draft passes
        self._declined = 0  # rounds in a row without a draft pass
        self._patience = 1  # factor by which the price falls more slowly than at first
        self._most_passes = passes
        self._passes_made: list[tuple[int, float]] = []  # rows and seconds of each draft pass in the last round
        self._requantize_s = 0.0  # seconds of quantizing before the last round of drafts
        self._usual = 1.0  # usual probability that a drafted token is accepted

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """Returns a draft for each request. Draft i has at most limits[i] tokens, and ends where the probability that
        all of it is accepted falls below floors[i]."""
        self.handed_out()  # drops the work of an earlier pass that nobody has asked for
        if self.history is None:
            alone = Chains(limits, floors).drafts()
        else:
            alone = self.history.propose_batch(requests, limits, floors)
        # This check must be cheap: if the model does not pay, nothing else is done for it. A pass is worth most if
        # it drafts for every request and the history has no drafts.
        if not self._pays(len(requests) * self._usual, self._price(len(requests))):
            self._stop()
            return alone
        chains = Chains(limits, floors)
        pending = chains.take(np.arange(len(requests)), alone)
        return chains.drafts() if self._draft(requests, chains, pending) else alone

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        """Returns the drafts of `propose_batch` as a list."""
        drafts = self.propose_batch(requests, limits, floors)
        return [drafts[row] for row in range(len(drafts))]

    @property
    def history_tick(self) -> int:
        """The current tick (step or epoch) of the window of past responses."""
        return self._tick if self.history is None else self.history.history_tick

    @property
    def history_tokens(self) -> int:
        """The number of response tokens in the history."""
        return 0 if self.history is None else self.history.history_tokens

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        """Note that a request joins the batch. seed: see HistoryDrafter."""
        if self.history is not None:
            self.history.begin(request, problem, prompt, seed)

    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Append to a request's text the tokens that it already has when it joins the batch."""
        if self.history is not None:
            self.history.observe(request, tokens)

    def observe_batch(
        self,
        requests: Sequence[str],
        tokens: Sequence[Sequence[int] | np.ndarray],
        remembered: np.ndarray | None = None,
    ) -> None:
        """Append to the requests' texts the tokens emitted by the pass that verified the last drafts. remembered: see
        HistoryDrafter."""
        self.model.observe(requests, [list(new) for new in tokens])
        if self.history is not None:
            self.history.observe_batch(requests, tokens, remembered)

    def remembered(self, request: str) -> Distributions | None:
        """See RememberingDrafter."""
        return None if self.history is None else self.history.remembered(request)

    def end(self, request: str, keep: bool = True) -> None:
        """Note that a request finished. keep=False: its response does not join the history."""
        if self.history is not None:
            self.history.end(request, keep)

    def end_step(self, history_tick: int) -> None:
        """Note that a rollout is over, and move the window of past responses to this tick (step or epoch)."""
        self._tick = history_tick
        self.model.observe((), ())  # most of the last drafts belong to finished requests: nothing is learned of them
        if self.history is not None:
            self.history.end_step(history_tick)

    def add_history(self, texts: Sequence[SavedText]) -> None:
        """Add to the history responses that other engines finished."""
        if self.history is not None:
            self.history.add_history(texts)

    def save(self, path: Path) -> None:
        """Write the history of past responses to a file."""
        if self.history is not None:
            self.history.save(path)

    def load(self, path: Path) -> None:
        """Read the history that `save` wrote."""
        if self.history is not None:
            self.history.load(path)

    def state(self) -> dict[str, np.ndarray]:
        """Returns the learned probability of acceptance, for a checkpoint. The prices of draft passes are left out,
        because a few passes show them again."""
        return {"usual": np.array(self._usual)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        self._usual = float(state["usual"])

    def handed_out(self) -> DraftWork:
        """Returns the model's work in the last round of drafts. Further calls return no work until the next round."""
        work = DraftWork(self._passes_made, self._requantize_s)
        self._passes_made, self._requantize_s = [], 0.0
        return work

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
            if not self._pays(gain, self._price(num_rows)):
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

    def _prepare(self, requests: Sequence[str]) -> bool:
        """Prepare the model. Returns whether it may draft in this round."""
        took = self.model.prepare(requests)
        self._requantize_s = took or 0.0
        return took is not None

    def _pays(self, tokens: float, seconds: float) -> bool:
        """Returns whether draft passes save time. seconds: the time that they take. tokens: how many more tokens the
        policy should emit because of them."""
        worth = self.worth()
        return math.isnan(worth) or tokens * worth >= seconds

    def _price(self, rows: int) -> float:
        """Returns the seconds that a draft pass may be expected to take; 0 before the first one. While none is made the
        price falls, because nothing would show that passes became cheaper: some day one is made, as a trial."""
        return self.prices.predict(rows) * FADE ** (self._declined / self._patience) if self.prices.seen else 0.0

    def _stop(self) -> None:
        """End the round of drafts, because one more draft pass would cost more time than it saves."""
        if not self._passes_made:
            self._declined += 1

    def _note_pass(self, rows: int, seconds: float, likely: np.ndarray) -> None:
        """Record a draft pass. rows: the pass's rows. likely: acceptance probabilities of the drafted tokens."""
        self._usual += 0.02 * (float(likely.mean()) - self._usual)
        self._passes_made.append((rows, seconds))
        self._patience = min(2 * self._patience, MAX_PATIENCE) if self._declined else 1
        self._declined = 0
        self.prices.observe(TargetPass(rows, 0, 0, 0, seconds))
