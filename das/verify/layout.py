"""Computes the request and the position of each row of logits in a pass with drafts."""

import functools

import numpy as np
import torch


class Layout:
    """The rows of logits in a pass. A request's rows lie together: one for its next token, then one after each of its
    drafted tokens.

    num_drafted: int64 [requests]. draft_tokens: int32 [sum(num_drafted)]. parents: for each drafted token, the index of
    the token before it among its request's drafted tokens, or -1 (das/engine/branching/tree.py), int64
    [sum(num_drafted)]; None if no draft branches.
    """

    def __init__(self, num_drafted: np.ndarray, draft_tokens: torch.Tensor, parents: np.ndarray | None = None):
        self.num_drafted = num_drafted
        self.draft_tokens = draft_tokens
        self.parents = parents

    @functools.cached_property
    def owner(self) -> np.ndarray:
        """For each row, the index of its request, int64 [rows]."""
        return np.repeat(np.arange(len(self.num_drafted)), self.num_drafted + 1)

    @functools.cached_property
    def first_row(self) -> np.ndarray:
        """Index of each request's first row, int64 [requests]."""
        return np.cumsum(self.num_drafted + 1) - (self.num_drafted + 1)

    @functools.cached_property
    def offset(self) -> np.ndarray:
        """Number of drafted tokens that lead to each row, int64 [rows]."""
        place = np.arange(len(self.owner)) - self.first_row[self.owner]
        if self.parents is None:
            return place
        offset = np.zeros(len(place), np.int64)
        for row, parent in zip(place.nonzero()[0].tolist(), self.parents.tolist(), strict=True):
            offset[row] = offset[row - place[row] + parent + 1] + 1
        return offset
