"""The return types of drafters: drafted tokens with their acceptance probabilities."""

from __future__ import annotations

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
