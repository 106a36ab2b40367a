"""Values by problem id, for so many problems that memory stays bounded."""

from collections.abc import Callable
from typing import TypeVar

V = TypeVar("V")
MAX_PROBLEMS = 2**16  # AcceptanceModel, the largest user, holds some 130 MB then


class ByProblem(dict[str, V]):
    """A dict that makes the value of an unknown problem by `new()`. When it is full, it forgets the problem that came
    first.
    """

    def __init__(self, new: Callable[[], V], max_problems: int = MAX_PROBLEMS):
        super().__init__()
        self.new = new
        self.max_problems = max_problems

    def __missing__(self, problem: str) -> V:
        if len(self) >= self.max_problems:
            del self[next(iter(self))]
        value = self[problem] = self.new()
        return value
