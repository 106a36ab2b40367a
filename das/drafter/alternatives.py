"""Combine drafts from the history of past responses with drafts from a head (such as EAGLE-3): keep the better ones.

A head cannot continue a draft of the history, because it needs its own hidden states of all previous tokens. So a draft
is either made by the history alone, or it begins with tokens of the head, and the history continues it.
"""

from collections.abc import Sequence

import numpy as np

from das.drafter.draft import Drafts


def expected(drafts: Drafts) -> np.ndarray:
    """Returns the expected number of accepted tokens of each draft, float64 [R]."""
    joint = np.where(np.arange(drafts.probs.shape[1]) < drafts.counts[:, None], drafts.probs, 0.0)
    np.cumprod(joint, axis=1, out=joint)
    return np.asarray(joint.sum(axis=1))


class Alternatives:
    """Keeps, for each of R requests, the best draft so far and the head's tokens, with which later drafts begin.

    limits: the most tokens of each draft. floors: draft i ends where P(all of it is accepted) falls below floors[i];
    None: no floors. alone: the drafts that the history makes without the head. able: for each request, whether the head
    can draft for it, bool [R]; None: the head can draft for all requests.
    """

    def __init__(
        self, limits: Sequence[int], floors: Sequence[float] | None, alone: Drafts, able: np.ndarray | None = None
    ):
        num = len(limits)
        self._alone = alone
        self._limits = np.asarray(limits, np.int64)
        self._floors = np.zeros(num) if floors is None else np.asarray(floors, np.float64)
        self._best_value = expected(alone)
        self._alone_value = float(self._best_value.sum())
        self._depth = 0  # number of head tokens in each open row
        self._open = np.arange(num) if able is None else np.flatnonzero(able)  # open rows: the head may continue them
        self._joint = np.ones(num)  # per row: P(all head tokens are accepted)
        self._sum = np.zeros(num)  # per row: sum of these joint probabilities over the head's tokens
        self._behind = self._best_value.copy()  # per row: tokens expected from the history after accepted head tokens

    def open(self, head_value: float) -> tuple[np.ndarray, float]:
        """Choose the requests for which another head token is expected to pay. All other requests keep their best draft
        so far. Returns the indices of these A requests, int64 [A], and their total expected gain in tokens.

        head_value: the number of emitted tokens that a head token and the history's continuation usually yield.
        """
        more = np.maximum(head_value - self._behind, 0.0) * self._joint
        room = (self._limits > self._depth) & (self._joint >= self._floors) & (more > 0)
        self._open = self._open[room[self._open]]
        return self._open, float(more[self._open].sum())

    def gained(self) -> float:
        """Returns the expected tokens of the best drafts minus those of the history's drafts, over all requests."""
        return float(self._best_value.sum()) - self._alone_value

    def _lay_out(self) -> None:
        """Allocate arrays for drafts that begin with the head. This is done late, because usually no head is used."""
        alone, shape = self._alone, (len(self._limits), int(self._limits.max()))
        self._tokens, self._probs = np.zeros(shape, np.int32), np.zeros(shape)
        self._tokens[:, : alone.tokens.shape[1]], self._probs[:, : alone.probs.shape[1]] = alone.tokens, alone.probs
        self._counts = alone.counts.astype(np.int64)
        self._head_tokens, self._head_probs = np.zeros(shape, np.int32), np.zeros(shape)

    def append(self, tokens: np.ndarray, probs: np.ndarray) -> None:
        """Add the head's token for each open request. probs: P(token is accepted | tokens before it are)."""
        if not self._depth:
            self._lay_out()
        among = self._open
        self._head_tokens[among, self._depth], self._head_probs[among, self._depth] = tokens, probs
        self._depth += 1
        self._joint[among] *= probs
        self._open = among = among[self._joint[among] >= self._floors[among]]
        self._sum[among] += self._joint[among]

    def last_tokens(self) -> np.ndarray:
        """Returns the head's last token for each open request, int32 [A]."""
        return np.asarray(self._head_tokens[self._open, self._depth - 1])

    def behind(self) -> tuple[np.ndarray, list[list[int]], list[int], list[float]]:
        """Returns what the history needs to continue the head's tokens: the indices of the open requests, int64 [A],
        and for each of them its head tokens, how many more tokens fit, and the floor of these: the least probability
        that all of them are accepted if the head tokens are."""
        among = self._open
        floors = np.minimum(self._floors[among] / np.maximum(self._joint[among], 1e-300), 1.0)
        return (
            among,
            self._head_tokens[among, : self._depth].tolist(),
            (self._limits[among] - self._depth).tolist(),
            floors.tolist(),
        )

    def offer(self, drafts: Drafts) -> np.ndarray:
        """For each open request, compare the head's tokens and their continuation with its best draft, and keep the
        better one.

        drafts: the continuations, which the history made. Returns the expected number of accepted tokens that each
        continuation adds if all its head tokens are accepted, float64 [A].
        """
        among, depth = self._open, self._depth
        self._behind[among] = behind = expected(drafts)
        value = self._sum[among] + self._joint[among] * behind
        better = np.flatnonzero(value > self._best_value[among])
        those, width = among[better], drafts.tokens.shape[1]
        self._best_value[those] = value[better]
        self._counts[those] = depth + drafts.counts[better]
        self._tokens[those, :depth], self._probs[those, :depth] = (
            self._head_tokens[those, :depth],
            self._head_probs[those, :depth],
        )
        self._tokens[those, depth : depth + width] = drafts.tokens[better]
        self._probs[those, depth : depth + width] = drafts.probs[better]
        return behind

    def drafts(self) -> Drafts:
        """Returns the best draft of each request."""
        if not self._depth:
            return self._alone
        return Drafts(self._tokens, self._probs, self._counts)
