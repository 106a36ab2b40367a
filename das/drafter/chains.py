"""Chains of a hybrid: the history drafts the tokens that it is sure of, and a model those between them.

Text that is hard to foresee is rare in a response: a token that the history cannot know is often followed by many that
it can. So the two take turns. What the history drafts behind the model's last token, sure or not, ends the chain.
"""

from collections.abc import Sequence

import numpy as np

from das.drafter.draft import Drafts

# The history's tokens are taken in place of the model's while all of them are accepted with this probability.
# Tried: 0.6, 0.7, 0.8, 0.9 (docs/notes/2026-11-23-model-drafters.md).
SURE = 0.8


class Chains:
    """Drafts of R requests that grow by the tokens of two drafters.

    limits: the most tokens of each. floors: a chain ends where the probability that all of it is accepted falls below
    floors[i]; None: nowhere.
    """

    def __init__(self, limits: Sequence[int], floors: Sequence[float] | None):
        self._limits = np.asarray(limits, np.int64)
        num, width = len(limits), max(limits)
        self._floors = np.zeros(num) if floors is None else np.asarray(floors, np.float64)
        self._tokens, self._probs = np.zeros((num, width), np.int32), np.zeros((num, width))
        self._counts = np.zeros(num, np.int64)
        self._joint = np.ones(num)
        self._rests: list[tuple[list[int], list[float]]] = [([], [])] * num  # the history's unsure draft behind each

    def open(self, usual: float) -> tuple[np.ndarray, float]:
        """Which chains may get a token of the model, int64, and how many tokens more it lets the pass emit.

        usual: the probability with which a token of the model is accepted behind accepted ones. What the history's
        token would emit in its place does not count.
        """
        among = np.flatnonzero((self._counts < self._limits) & (self._joint >= self._floors))
        instead = np.array([self._rests[i][1][0] if self._rests[i][1] else 0.0 for i in among.tolist()])
        return among, float((self._joint[among] * np.maximum(usual - instead, 0.0)).sum())

    def append(self, among: np.ndarray, tokens: np.ndarray, probs: np.ndarray) -> None:
        """Lengthen these chains by a token of the model each. probs: P(it is accepted | those before it are)."""
        at = self._counts[among]
        self._tokens[among, at], self._probs[among, at] = tokens, probs
        self._counts[among] += 1
        self._joint[among] *= probs
        for i in among.tolist():
            self._rests[i] = [], []

    def take(self, among: np.ndarray, drafts: Drafts) -> list[list[int]]:
        """Lengthen these chains by the sure tokens of the history's drafts behind them, and keep the others.

        Returns the tokens that each chain got.
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
        """The tokens of these chains, how many more each may get, and the floor of these."""
        tokens = [self._tokens[i, : self._counts[i]].tolist() for i in among.tolist()]
        room = (self._limits - self._counts)[among].tolist()
        return tokens, room, (self._floors[among] / np.maximum(self._joint[among], 1e-300)).tolist()

    def drafts(self) -> Drafts:
        """All chains, each with what the history drafts behind it."""
        for i, (tokens, probs) in enumerate(self._rests):
            self._extend(i, tokens, probs)
        self._rests = [([], [])] * len(self._rests)
        return Drafts(self._tokens, self._probs, self._counts)
