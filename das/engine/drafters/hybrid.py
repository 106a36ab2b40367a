"""Chains that a model drafts behind what the history drafts, for the requests of a pass."""

from collections.abc import Sequence

import numpy as np

from das.drafter import Drafts

SURE = 0.8  # the history's tokens are kept in front of the model's while all of them are accepted with this probability


class Chains:
    """Drafts of R requests that grow depth by depth.

    limits: the most tokens of each. floors: a chain ends where the probability that all of it is accepted falls below
    floors[i]; None: nowhere. history: what the history drafts, within these limits; None: nothing.

    A chain begins with the history's sure tokens, and goes on with the model's. Of the chain and the history's whole
    draft, the one with more expected tokens is taken in the end.
    """

    def __init__(self, limits: Sequence[int], floors: Sequence[float] | None, history: Drafts | None):
        self._limits = np.asarray(limits, np.int64)
        num, width = len(limits), max(limits)
        self._floors = np.zeros(num) if floors is None else np.asarray(floors, np.float64)
        self._tokens = np.zeros((num, width), np.int32)
        self._probs = np.zeros((num, width))
        self._counts = np.zeros(num, np.int64)
        self._whole: Drafts | None = None
        self._whole_joint = np.zeros((num, width + 1))  # of the history's draft, by depth; 0 behind its end
        if history is not None:
            self._take(history)
        self._joint = np.where(self._columns < self._counts[:, None], self._probs, 1.0).prod(axis=1)

    @property
    def _columns(self) -> np.ndarray:
        return np.arange(self._tokens.shape[1])[None, :]

    def _take(self, history: Drafts) -> None:
        width = min(self._tokens.shape[1], history.tokens.shape[1])
        counts = np.minimum(history.counts, self._limits)
        tokens, probs = np.zeros_like(self._tokens), np.zeros_like(self._probs)
        tokens[:, :width], probs[:, :width] = history.tokens[:, :width], history.probs[:, :width]
        probs[self._columns >= counts[:, None]] = 0.0
        joint = probs.cumprod(axis=1)
        self._whole, self._whole_joint[:, :-1] = Drafts(tokens, probs, counts), joint
        self._counts = (joint >= SURE).sum(axis=1)
        self._tokens, self._probs = tokens.copy(), probs.copy()

    def prefixes(self) -> list[list[int]]:
        """The tokens of each chain."""
        return [own[:count] for own, count in zip(self._tokens.tolist(), self._counts.tolist(), strict=True)]

    def open(self, usual: float) -> tuple[np.ndarray, float]:
        """Which chains may get one more token, int64, and how many tokens more it lets the pass emit.

        usual: the probability with which a token of the model is accepted behind accepted ones. What the history's
        draft would emit at the same depth does not count.
        """
        among = np.flatnonzero((self._counts < self._limits) & (self._joint >= self._floors))
        gains = self._joint[among] * usual - self._whole_joint[among, self._counts[among]]
        return among, float(gains[gains > 0].sum())

    def append(self, among: np.ndarray, tokens: np.ndarray, probs: np.ndarray) -> None:
        """Lengthen these chains by a token each. probs: P(it is accepted | those before it are)."""
        at = self._counts[among]
        self._tokens[among, at], self._probs[among, at] = tokens, probs
        self._counts[among] += 1
        self._joint[among] *= probs

    def drop(self) -> None:
        """Forget what the model drafted."""
        self._counts[:] = 0

    def drafts(self) -> Drafts:
        """For each request its chain, or the history's draft if that is expected to emit more."""
        if self._whole is None:
            return Drafts(self._tokens, self._probs, self._counts)
        joint = np.where(self._columns < self._counts[:, None], self._probs, 0.0).cumprod(axis=1)
        better = self._whole_joint.sum(axis=1) > joint.sum(axis=1)
        return Drafts(
            np.where(better[:, None], self._whole.tokens, self._tokens),
            np.where(better[:, None], self._whole.probs, self._probs),
            np.where(better, self._whole.counts, self._counts),
        )
