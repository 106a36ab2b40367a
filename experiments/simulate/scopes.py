"""Drafters that draft from other texts than those of the request's problem, for replays. They do it by the name of the
problem that they hand on."""

from collections.abc import Sequence

import numpy as np

from das.drafter import HistoryDrafter


class OwnText(HistoryDrafter):
    """Drafts from the request's own text and prompt alone: each request is a problem of its own."""

    def __init__(self) -> None:
        super().__init__(window=0, cross_problem_tokens=0)

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        super().begin(request, request, prompt, seed)


class OneProblem(HistoryDrafter):
    """Drafts from the texts of all problems alike: they count as one problem."""

    def __init__(self) -> None:
        super().__init__(cross_problem_tokens=0)

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        super().begin(request, "all", prompt, seed)
