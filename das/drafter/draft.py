"""The return types of drafters: drafted tokens, as chains or trees, with their acceptance probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Draft:
    """Drafted tokens; probs[j] estimates P(token j is accepted | all tokens before it were accepted)."""

    tokens: list[int]
    probs: list[float]


@dataclass(frozen=True)
class Drafts:
    """Drafts of a batch, one row per request. Row r holds counts[r] tokens; later entries are undefined."""

    tokens: np.ndarray  # int32 [R, K]
    probs: np.ndarray  # float64 [R, K], conditional as in Draft; rows are contiguous
    counts: np.ndarray  # int64 [R]

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, row: int) -> Draft:
        count = int(self.counts[row])
        return Draft(self.tokens[row, :count].tolist(), self.probs[row, :count].tolist())


def num_branches(parents: Sequence[int]) -> int:
    """Returns the number of branches of a draft: nodes that are not the first child of their parent."""
    return len(parents) - len(set(parents))


@dataclass(slots=True)
class TreeDraft:
    """The branching draft of one request: one row of TreeDrafts, without the undefined entries."""

    tokens: list[int]
    parents: list[int]
    probs: list[float]
    joint: list[float]


@dataclass(frozen=True)
class TreeDrafts:
    """Branching drafts of a batch, one row per request. Row r holds counts[r] nodes; later entries are undefined.

    A parent precedes its children, and nodes are sorted by falling joint probability. So any prefix of a row is also a
    tree, and the best tree of its size. Siblings hold different tokens, so at most one of them can be accepted. A chain
    is a tree whose parents are -1, 0, 1, ...
    """

    tokens: np.ndarray  # int32 [R, N]
    parents: np.ndarray  # int32 [R, N]: the parent's index in the row; -1: the node follows the last emitted token
    probs: np.ndarray  # float64 [R, N]: P(the node is accepted | its parent was accepted)
    joint: np.ndarray  # float64 [R, N]: P(all of the path to the node is accepted)
    counts: np.ndarray  # int64 [R]

    def branches(self, counts: Sequence[int]) -> list[int]:
        """Returns the number of branches among the first counts[r] nodes of each row."""
        return [num_branches(parents[:count]) for parents, count in zip(self.parents.tolist(), counts, strict=True)]

    def as_chains(self) -> Drafts:
        """Returns chains for budgets, which cannot read trees: each prefix of a chain has the same expected number of
        accepted tokens as the same prefix of the tree's row.

        This number is the sum of joint probabilities. The joint probability of a token of a chain is the product of
        `probs` up to it.
        """
        probs = self.joint.copy()
        for row, count in enumerate(self.counts.tolist()):
            probs[row, 1:count] /= self.joint[row, : max(count - 1, 0)]
        return Drafts(self.tokens, probs, self.counts)

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, row: int) -> TreeDraft:
        count = int(self.counts[row])
        return TreeDraft(*(a[row, :count].tolist() for a in (self.tokens, self.parents, self.probs, self.joint)))

    def __iter__(self) -> Iterator[TreeDraft]:
        return (self[row] for row in range(len(self)))
