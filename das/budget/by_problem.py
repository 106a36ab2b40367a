"""A dict that keeps a value for each problem id, and drops the oldest problem when it is full."""

from collections.abc import Callable
from typing import TypeVar

V = TypeVar("V")
MAX_PROBLEMS = 2**16  # with so many, AcceptanceModel, the largest user, takes some 130 MB


class ByProblem(dict[str, V]):
    """A defaultdict by problem id: `new()` makes missing values. A full dict drops its oldest problem."""

    def __init__(self, new: Callable[[], V], max_problems: int = MAX_PROBLEMS):
        super().__init__()
        self.new = new
        self.max_problems = max_problems

    def __missing__(self, problem: str) -> V:
        if len(self) >= self.max_problems:
            del self[next(iter(self))]
        value = self[problem] = self.new()
        return value
