"""Computes the request and the position of each row of logits in a pass with drafts."""

import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

PARENTS = "das_parents"  # attribute that SpecDecodeMetadata gets where drafts branch: Layout's `parents`


class RowLayout(Protocol):
    """The facts about rows of logits that are needed to apply sampling parameters to these rows."""

    @property
    def owner(self) -> np.ndarray:
        """Index of the request to which each row belongs, int64 [rows]."""

    @property
    def offset(self) -> np.ndarray:
        """Number of tokens that lead to each row and are not yet emitted, int64 [rows]."""

    def before(self) -> list[list[int]]:
        """Returns, for each row, the tokens that lead to it and are not yet emitted."""


@dataclass(slots=True)
class DraftRows:
    """The rows of logits from which drafts get their next tokens. Implements RowLayout.

    owner: see RowLayout. tokens: for each row, the tokens before it that the batch does not know.
    """

    owner: np.ndarray
    tokens: list[list[int]]

    @property
    def offset(self) -> np.ndarray:
        """See RowLayout."""
        return np.array([len(before) for before in self.tokens], np.int64)

    def before(self) -> list[list[int]]:
        """See RowLayout."""
        return self.tokens


class Layout:
    """The rows of logits in a pass. A request's rows lie together: one for its next token, then one after each of its
    drafted tokens.

    num_drafted: int64 [requests]. draft_tokens: int32 [sum(num_drafted)]. parents: for each drafted token, the index of
    the token before it among its request's drafted tokens, or -1 (das/engine/branching/tree.py), int64
    [sum(num_drafted)]; None if no draft branches. first_request: index of the first of these requests in the batch.
    """

    def __init__(
        self,
        num_drafted: np.ndarray,
        draft_tokens: torch.Tensor,
        parents: np.ndarray | None = None,
        first_request: int = 0,
    ):
        self.num_drafted = num_drafted
        self.draft_tokens = draft_tokens
        self.parents = parents
        self.first_request = first_request

    @classmethod
    def of(cls, drafts: SpecDecodeMetadata) -> "Layout":
        """Returns the layout of the pass whose drafts vLLM describes by `drafts`."""
        return cls(
            np.asarray(drafts.num_draft_tokens, np.int64), drafts.draft_token_ids, getattr(drafts, PARENTS, None)
        )

    def pieces(self, max_rows: int) -> list["Layout"]:
        """Split this layout into layouts of consecutive requests. Each has at most `max_rows` rows, or a single
        request."""
        ends = np.cumsum(self.num_drafted + 1)
        found: list[Layout] = []
        first = first_row = 0
        while first < len(ends):
            last = max(int(np.searchsorted(ends, first_row + max_rows, side="right")), first + 1)
            start, stop = first_row - first, int(ends[last - 1]) - last  # of this piece among all drafted tokens
            found.append(
                Layout(
                    self.num_drafted[first:last],
                    self.draft_tokens[start:stop],
                    None if self.parents is None else self.parents[start:stop],
                    self.first_request + first,
                )
            )
            first, first_row = last, int(ends[last - 1])
        return found

    @property
    def num_rows(self) -> int:
        """The number of rows of all requests."""
        return int(self.num_drafted.sum()) + len(self.num_drafted)

    @functools.cached_property
    def own_request(self) -> np.ndarray:
        """For each row, the index of its request among the requests of this layout, int64 [rows]."""
        return np.repeat(np.arange(len(self.num_drafted)), self.num_drafted + 1)

    @functools.cached_property
    def owner(self) -> np.ndarray:
        """For each row, the index of its request in the batch, int64 [rows]."""
        return self.own_request + self.first_request

    @functools.cached_property
    def first_row(self) -> np.ndarray:
        """Index of each request's first row, int64 [requests]."""
        return np.cumsum(self.num_drafted + 1) - (self.num_drafted + 1)

    @functools.cached_property
    def offset(self) -> np.ndarray:
        """Number of drafted tokens that lead to each row, int64 [rows]."""
        place = np.arange(len(self.own_request)) - self.first_row[self.own_request]
        if self.parents is None:
            return place
        offset = np.zeros(len(place), np.int64)
        for row, parent in zip(place.nonzero()[0].tolist(), self.parents.tolist(), strict=True):
            offset[row] = offset[row - place[row] + parent + 1] + 1
        return offset

    def before(self) -> list[list[int]]:
        """Returns, for each row, the drafted tokens that lead to it."""
        tokens, starts = self.draft_tokens.tolist(), (np.cumsum(self.num_drafted) - self.num_drafted).tolist()
        if self.parents is None:
            return [
                tokens[starts[request] : starts[request] + offset]
                for request, offset in zip(self.own_request.tolist(), self.offset.tolist(), strict=True)
            ]
        paths: list[list[int]] = []
        for start, num_drafted in zip(starts, self.num_drafted.tolist(), strict=True):
            first_row = len(paths)
            paths.append([])
            for node in range(start, start + num_drafted):
                paths.append([*paths[first_row + 1 + self.parents[node]], tokens[node]])
        return paths

    def width(self) -> int:
        """Returns the most tokens that a request may emit in the pass."""
        return int((self.num_drafted if self.parents is None else self.offset).max()) + 1
