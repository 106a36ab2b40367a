"""What a hybrid of history and draft head may draft for a request, and which of it is expected to emit most.

The head cannot go on behind tokens of the history, because it needs its own hidden states of all tokens before. So a
draft is what the history drafts, or one or more tokens of the head and what the history drafts behind them.
"""

from collections.abc import Sequence

import numpy as np

from das.drafter.draft import Drafts


def expected(drafts: Drafts) -> np.ndarray:
    """Tokens of each draft that are accepted on average, float64 [R]."""
    joint = np.where(np.arange(drafts.probs.shape[1]) < drafts.counts[:, None], drafts.probs, 0.0)
    np.cumprod(joint, axis=1, out=joint)
    return np.asarray(joint.sum(axis=1))


class Alternatives:
    """Drafts of R requests: of each, the best one so far, and the tokens of the head that a further one begins with.

    limits: the most tokens of each. floors: a draft ends where the probability that all of it is accepted falls below
    floors[i]; None: nowhere. alone: what the history drafts without the head. able: for which the head can draft, bool
    [R]; None: for all.
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
        self._depth = 0  # tokens of the head, of those rows that went on with it so far
        self._open = np.arange(num) if able is None else np.flatnonzero(able)  # these rows
        self._joint = np.ones(num)  # probability that all of its tokens are accepted
        self._sum = np.zeros(num)  # of these probabilities, over its tokens
        self._behind = self._best_value.copy()  # what the history is expected to add behind them, if all are accepted

    def open(self, head_value: float) -> tuple[np.ndarray, float]:
        """The requests that the head may draft a token for, int64 [A], and how many tokens more these drafts are
        expected to emit. The others have what they had.

        head_value: tokens that the head and the history behind it are usually expected to emit from here on.
        """
        more = np.maximum(head_value - self._behind, 0.0) * self._joint
        room = (self._limits > self._depth) & (self._joint >= self._floors) & (more > 0)
        self._open = self._open[room[self._open]]
        return self._open, float(more[self._open].sum())

    def gained(self) -> float:
        """How many tokens more than the history's drafts the best ones are expected to emit, of all requests."""
        return float(self._best_value.sum()) - self._alone_value

    def _lay_out(self) -> None:
        """Make room for further drafts: not before there is one, because most often the head is declined."""
        alone, shape = self._alone, (len(self._limits), int(self._limits.max()))
        self._tokens, self._probs = np.zeros(shape, np.int32), np.zeros(shape)
        self._tokens[:, : alone.tokens.shape[1]], self._probs[:, : alone.probs.shape[1]] = alone.tokens, alone.probs
        self._counts = alone.counts.astype(np.int64)
        self._head_tokens, self._head_probs = np.zeros(shape, np.int32), np.zeros(shape)

    def append(self, tokens: np.ndarray, probs: np.ndarray) -> None:
        """The head drafted a token for each open request. probs: P(it is accepted | those before it are)."""
        if not self._depth:
            self._lay_out()
        among = self._open
        self._head_tokens[among, self._depth], self._head_probs[among, self._depth] = tokens, probs
        self._depth += 1
        self._joint[among] *= probs
        self._open = among = among[self._joint[among] >= self._floors[among]]
        self._sum[among] += self._joint[among]

    def last_tokens(self) -> np.ndarray:
        """The last token of the head of each open request, int32 [A]."""
        return np.asarray(self._head_tokens[self._open, self._depth - 1])

    def behind(self) -> tuple[np.ndarray, list[list[int]], list[int], list[float]]:
        """The open requests, int64 [A], the head's tokens of each, how many more it may get, and the floor of these."""
        among = self._open
        floors = np.minimum(self._floors[among] / np.maximum(self._joint[among], 1e-300), 1.0)
        return (
            among,
            self._head_tokens[among, : self._depth].tolist(),
            (self._limits[among] - self._depth).tolist(),
            floors.tolist(),
        )

    def offer(self, drafts: Drafts) -> np.ndarray:
        """What the history drafts behind the head's tokens of the open requests. The better drafts are kept.

        Returns what the history is expected to add to accepted tokens of the head, float64 [A].
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
        """The best draft of each request."""
        if not self._depth:
            return self._alone
        return Drafts(self._tokens, self._probs, self._counts)
