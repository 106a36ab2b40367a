"""A model drafts, alone or in turns with the history. Methods: self_draft, das_self.

In turns, the model proposes where the history is unsure. Unpredictable text is rare in a response: a token that the
history cannot predict is often followed by many that it can predict. A chain (a draft without branches) ends with the
history's draft after the model's last token, even if the history is unsure.

The model itself is das.models.self_draft.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from das.budget import DraftWork, TargetPass
from das.budget.latency import LatencyModel
from das.drafter import Draft, Drafter, Drafts, HistoryDrafter

# The history is confident while the joint probability of its tokens is at least this.
# Tried: 0.6, 0.7, 0.8, 0.9 (docs/log.md#self-drafts-and-the-hybrid-2026-11-23).
SURE = 0.8
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


class NoHistory(Drafter):
    """Takes the place of the history where a model drafts alone: it drafts nothing."""

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        """Do nothing, as the other methods."""

    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Do nothing."""

    def end(self, request: str, keep: bool = True) -> None:
        """Do nothing."""

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        """Returns empty drafts."""
        return [Draft([], []) for _ in requests]


class Hybrid:
    """Continues drafts by a model: the history's tokens stay where it is confident, elsewhere the model drafts.

    passes    the most model passes for one target pass; None: any number
    worth     function that returns the seconds saved by one more emitted token; nan while unknown

    Each pass drafts one token for all requests at once. Passes continue while their tokens should save more time than
    they take.
    """

    def __init__(self, model: ChainModel, passes: int | None, worth: Callable[[], float]):
        self.model = model
        self.worth = worth
        self.prices = LatencyModel()  # of draft passes
        self._declined = 0  # rounds in a row without a draft pass
        self._patience = 1  # factor by which the price falls more slowly than at first
        self._most_passes = passes
        self._passes_made: list[tuple[int, float]] = []  # rows and seconds of each draft pass in the last round
        self._requantize_s = 0.0  # seconds of quantizing before the last round of drafts
        self._usual = 1.0  # usual probability that a drafted token is accepted

    def extend(
        self,
        drafter: Drafter,
        requests: Sequence[str],
        limits: Sequence[int],
        floors: Sequence[float] | None = None,
    ) -> Drafts:
        """Returns a draft for each request, to which `drafter` (the history) and the model contribute. Draft i has at
        most limits[i] tokens, and ends where the probability that all of it is accepted falls below floors[i]."""
        self.handed_out()  # drops the work of an earlier pass that nobody has asked for
        alone = drafter.propose_batch(requests, limits, floors)
        # This check must be cheap: if the model does not pay, nothing else is done for it. A pass is worth most if
        # it drafts for every request and the history has no drafts.
        if not self._pays(len(requests) * self._usual, self._price(len(requests))):
            self._stop()
            return alone
        chains = Chains(limits, floors)
        pending = chains.take(np.arange(len(requests)), alone)
        return chains.drafts() if self._draft(drafter, requests, chains, pending) else alone

    def observe(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """Learn from the tokens emitted by the pass that verified the last drafts. No requests: the rollout is over.
        Most of the last drafts then belong to finished requests, and nothing is learned of them."""
        self.model.observe(requests, tokens)

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

    def _draft(self, drafter: Drafter, requests: Sequence[str], chains: "Chains", pending: list[list[int]]) -> bool:
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
            if not begun:
                took = self.model.prepare(requests)
                self._requantize_s = took or 0.0
                if took is None:  # it may not draft
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
            if isinstance(drafter, HistoryDrafter):
                texts, room, floors = chains.behind(among)
                drafts = drafter.propose_behind([requests[i] for i in among.tolist()], texts, room, floors)
                for i, taken in zip(among.tolist(), chains.take(among, drafts), strict=True):
                    pending[i] += taken
            self._note_pass(num_rows, self.model.clock() - start, drawn[1])

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


class Chains:
    """R chains, to which the history and the model append tokens.

    limits: the most tokens of each chain. floors: chain i ends where P(all of it is accepted) falls below floors[i];
    None: no floors.
    """

    def __init__(self, limits: Sequence[int], floors: Sequence[float] | None):
        self._limits = np.asarray(limits, np.int64)
        num, width = len(limits), max(limits)
        self._floors = np.zeros(num) if floors is None else np.asarray(floors, np.float64)
        self._tokens, self._probs = np.zeros((num, width), np.int32), np.zeros((num, width))
        self._counts = np.zeros(num, np.int64)
        self._joint = np.ones(num)
        self._rests: list[tuple[list[int], list[float]]] = [([], [])] * num  # per chain: the history's unsure tokens

    def open(self, usual: float) -> tuple[np.ndarray, float]:
        """Returns the chains that may get a model token, int64 [A], and their total expected gain in emitted tokens.

        usual: the usual probability that a model token is accepted after accepted tokens. The gain of a model token is
        its advantage over the history's token that would stand in its place.
        """
        among = np.flatnonzero((self._counts < self._limits) & (self._joint >= self._floors))
        instead = np.array([self._rests[i][1][0] if self._rests[i][1] else 0.0 for i in among.tolist()])
        return among, float((self._joint[among] * np.maximum(usual - instead, 0.0)).sum())

    def append(self, among: np.ndarray, tokens: np.ndarray, probs: np.ndarray) -> None:
        """Append one model token to each of these chains. probs: P(token is accepted | tokens before it are)."""
        at = self._counts[among]
        self._tokens[among, at], self._probs[among, at] = tokens, probs
        self._counts[among] += 1
        self._joint[among] *= probs
        for i in among.tolist():
            self._rests[i] = [], []

    def take(self, among: np.ndarray, drafts: Drafts) -> list[list[int]]:
        """Append to each of these chains the tokens of the history's draft of which the history is confident. Store its
        other tokens, which `drafts` appends.

        Returns the appended tokens of each chain.
        """
        taken = []
        for row, i in enumerate(among.tolist()):
            draft = drafts[row]
            count, reach = 0, 1.0
            for prob in draft.probs[: int(self._limits[i] - self._counts[i])]:
                reach *= prob
                if reach < SURE:
                    break
                count += 1
            taken.append(draft.tokens[:count])
            self._extend(i, draft.tokens[:count], draft.probs[:count])
            self._rests[i] = draft.tokens[count:], draft.probs[count:]
        return taken

    def _extend(self, i: int, tokens: Sequence[int], probs: Sequence[float]) -> None:
        at = int(self._counts[i])
        stop = min(at + len(tokens), int(self._limits[i]))
        self._tokens[i, at:stop], self._probs[i, at:stop] = tokens[: stop - at], probs[: stop - at]
        self._counts[i] = stop
        self._joint[i] *= np.prod(probs[: stop - at])

    def behind(self, among: np.ndarray) -> tuple[list[list[int]], list[int], list[float]]:
        """Returns three lists, with an item for each chain in `among`: its tokens; how many more tokens it may get; and
        the floor of these, the least probability that all of them are accepted if its tokens are."""
        tokens = [self._tokens[i, : self._counts[i]].tolist() for i in among.tolist()]
        room = (self._limits - self._counts)[among].tolist()
        return tokens, room, (self._floors[among] / np.maximum(self._joint[among], 1e-300)).tolist()

    def drafts(self) -> Drafts:
        """Returns all chains. Each ends with the tokens of the history that `take` stored."""
        for i, (tokens, probs) in enumerate(self._rests):
            self._extend(i, tokens, probs)
        self._rests = [([], [])] * len(self._rests)
        return Drafts(self._tokens, self._probs, self._counts)
