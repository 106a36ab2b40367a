"""LengthModel: predicts whether a response will be Long, Medium or Short (paper §2.7).

at start        Init = argmax_c  #{past responses of the problem in class c}
while running   Class = argmax_c  P(c | generated so far, Init)     P counted over past rollouts
"""

import bisect
from collections import Counter, deque
from enum import IntEnum
from itertools import pairwise

from das.budget.by_problem import ByProblem


class LengthClass(IntEnum):
    """Class of a response's final length, in ascending order."""

    SHORT = 0
    MEDIUM = 1
    LONG = 2


class LengthModel:
    """Empirical length classes. All lengths are in tokens.

    medium, long  response length from which a response is Medium or Long
    memory        finished responses kept for the table; besides, each problem keeps its last PROBLEM_MEMORY

    Raises ValueError for thresholds that do not rise.
    """

    PROBLEM_MEMORY = 64

    def __init__(self, medium: int, long: int, memory: int = 4096):
        if not 0 < medium < long:
            raise ValueError(f"length thresholds must satisfy 0 < medium < long, got medium={medium}, long={long}")
        self.medium, self.long = medium, long
        self._problems: ByProblem[deque[int]] = ByProblem(lambda: deque(maxlen=self.PROBLEM_MEMORY))
        self._finished: deque[tuple[LengthClass, int]] = deque(maxlen=memory)  # (class at start, final length)
        self._lengths: dict[LengthClass, list[int]] = {}
        self._current: dict[tuple[int, LengthClass], LengthClass] = {}  # cache of `current` until the next refit

    def classify(self, length: int) -> LengthClass:
        """Class of a finished response of `length` tokens."""
        if length >= self.long:
            return LengthClass.LONG
        return LengthClass.MEDIUM if length >= self.medium else LengthClass.SHORT

    def initial(self, problem: str) -> LengthClass:
        """The most frequent class of the problem's past responses (on ties, the longer one); Medium without any."""
        past = self._problems.get(problem)
        if not past:
            return LengthClass.MEDIUM
        counts = Counter(self.classify(length) for length in past)
        return max(counts, key=lambda c: (counts[c], c))

    def current(self, generated: int, initial: LengthClass) -> LengthClass:
        """argmax_c P(c | more than `generated` tokens, initial) (on ties, the longer), at least the class reached."""
        current = self._current.get((generated, initial))
        if current is None:
            current = self._current[generated, initial] = self._likeliest(generated, initial)
        return current

    def _likeliest(self, generated: int, initial: LengthClass) -> LengthClass:
        reached = self.classify(generated)
        lengths = self._lengths.get(initial)
        if not lengths:
            return max(reached, initial)
        # The longer responses of each class begin here in the sorted lengths.
        starts = [bisect.bisect_left(lengths, max(least, generated + 1)) for least in (0, self.medium, self.long)]
        counts = [end - start for start, end in pairwise([*starts, len(lengths)])]
        if not any(counts):
            return LengthClass.LONG  # longer than anything seen with this start
        return max(reached, max(LengthClass, key=lambda c: (counts[c], c)))

    def observe(self, problem: str, initial: LengthClass, length: int) -> None:
        """Remember a finished response. It counts from the next `refit` on."""
        self._problems[problem].append(length)
        self._finished.append((initial, length))

    def refit(self) -> None:
        """Rebuild the table P(class | generated, initial) from the remembered responses."""
        self._current.clear()
        self._lengths = {c: sorted(n for start, n in self._finished if start == c) for c in LengthClass}
