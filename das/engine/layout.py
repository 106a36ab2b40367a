"""Which request and position each row of logits belongs to in a pass with drafts."""

import functools
from typing import Protocol

import numpy as np
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

PARENTS = "das_parents"  # attribute of vLLM's description of a pass whose drafts branch: int64 [sum(num_drafted)]


class RowLayout(Protocol):
    """What sampling parameters must know of rows of logits."""

    @property
    def owner(self) -> np.ndarray:
        """Index of the request to which each row belongs, int64 [rows]."""

    @property
    def offset(self) -> np.ndarray:
        """Number of tokens that lead to each row and are not yet emitted, int64 [rows]."""

    def before(self) -> list[list[int]]:
        """The tokens that lead to each row and are not yet emitted."""


class Layout:
    """A request's rows lie together: first the row of its next token, then one row after each of its drafted tokens.

    parents: for each drafted token the one before it, counted from its request's first, or -1 (das/engine/tree.py);
    int64 [sum(num_drafted)]. None where no draft branches.
    """

    def __init__(self, drafts: SpecDecodeMetadata):
        self.num_drafted = np.asarray(drafts.num_draft_tokens, np.int64)  # [requests]
        self.draft_tokens = drafts.draft_token_ids  # [sum(num_drafted)]
        self.parents: np.ndarray | None = getattr(drafts, PARENTS, None)

    @functools.cached_property
    def owner(self) -> np.ndarray:
        """Index of the request to which each row belongs, int64 [rows]."""
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

    def before(self) -> list[list[int]]:
        """The drafted tokens that lead to each row."""
        tokens, starts = self.draft_tokens.tolist(), (np.cumsum(self.num_drafted) - self.num_drafted).tolist()
        if self.parents is None:
            return [
                tokens[starts[request] : starts[request] + offset]
                for request, offset in zip(self.owner.tolist(), self.offset.tolist(), strict=True)
            ]
        paths: list[list[int]] = []
        for start, num_drafted in zip(starts, self.num_drafted.tolist(), strict=True):
            first_row = len(paths)
            paths.append([])
            for node in range(start, start + num_drafted):
                paths.append([*paths[first_row + 1 + self.parents[node]], tokens[node]])
        return paths

    def cells(self) -> np.ndarray:
        """Row of each cell of a table [requests, longest draft + 1]; shorter drafts repeat their request's last row.

        For drafts that do not branch.
        """
        column = np.arange(int(self.num_drafted.max()) + 1)[None, :]
        rows: np.ndarray = self.first_row[:, None] + np.minimum(column, self.num_drafted[:, None])
        return rows
