"""Make chains (drafts without branches) by the history and a model in turns: the model proposes where the history is
unsure.

Unpredictable text is rare in a response: a token that the history cannot predict is often followed by many that it can
predict. A chain ends with the history's draft after the model's last token, even if the history is unsure.
"""

from collections.abc import Sequence

import numpy as np

from das.drafter.draft import Drafts

# The history is confident while the joint probability of its tokens is at least this.
# Tried: 0.6, 0.7, 0.8, 0.9 (docs/log.md#self-drafts-and-the-hybrid-2026-11-23).
SURE = 0.8


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
