"""The rule that the paper deployed (§2.7): a draft limit for each of three classes of responses: Long, Medium, Short.

at start        Init = argmax_c  #{past responses of the problem in class c}
while running   Class = argmax_c  P(c | generated so far, Init)     P counted over past rollouts
"""

import bisect
from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise

from das.budget.by_problem import ByProblem
from das.budget.policies import BudgetPolicy, LengthClass, LiveRequest

PROBLEM_MEMORY = 64  # responses of each problem that are remembered for Init
MEMORY = 4096  # responses that are remembered for P


class Classes(BudgetPolicy):
    """Gives each request the draft limit of its length class (Short, Medium or Long).

    short, medium, long     draft tokens per pass for a request of the class
    medium_from, long_from  response length in tokens from which a request is Medium or Long

    Raises ValueError for negative limits, for limits that are all 0, and for thresholds that do not rise.
    """

    def __init__(self, short: int = 0, medium: int = 8, long: int = 24, medium_from: int = 64, long_from: int = 160):
        if min(short, medium, long) < 0:
            raise ValueError(f"budgets must not be negative, got short={short}, medium={medium}, long={long}")
        if max(short, medium, long) == 0:
            raise ValueError("all three class budgets are 0: nothing would be drafted; for no drafts use budget=none")
        if not 0 < medium_from < long_from:
            raise ValueError(
                f"length thresholds must satisfy 0 < medium < long, got medium={medium_from}, long={long_from}"
            )
        self.by_class = {LengthClass.SHORT: short, LengthClass.MEDIUM: medium, LengthClass.LONG: long}
        self.max_draft_tokens = max(self.by_class.values())
        self._medium_from, self._long_from = medium_from, long_from
        self._problems: ByProblem[deque[int]] = ByProblem(lambda: deque(maxlen=PROBLEM_MEMORY))  # response lengths
        self._finished: deque[tuple[LengthClass, int]] = deque(maxlen=MEMORY)  # (class at start, final length)
        self._lengths: dict[LengthClass, list[int]] = {}  # the same lengths, sorted, up to the end of the last rollout
        self._current: dict[tuple[int, LengthClass], LengthClass] = {}  # results of `_likeliest` in this rollout

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        limits = []
        for request in live:
            if request.initial is None:
                request.initial = self._initial(request.problem)
            state = request.generated, request.initial
            current = self._current.get(state)
            if current is None:
                current = self._current[state] = self._likeliest(*state)
            limits.append(self.by_class[current])
        return limits

    def end(self, request: LiveRequest) -> None:
        if request.initial is not None:
            self._problems[request.problem].append(request.generated)
            self._finished.append((request.initial, request.generated))

    def end_step(self) -> None:
        self._current.clear()
        self._lengths = {c: sorted(n for start, n in self._finished if start == c) for c in LengthClass}

    def _class_of(self, length: int) -> LengthClass:
        if length >= self._long_from:
            return LengthClass.LONG
        return LengthClass.MEDIUM if length >= self._medium_from else LengthClass.SHORT

    def _initial(self, problem: str) -> LengthClass:
        """Returns the most frequent class of the problem's past responses (on ties, the longer); Medium without any."""
        past = self._problems.get(problem)
        if not past:
            return LengthClass.MEDIUM
        counts = Counter(map(self._class_of, past))
        return max(counts, key=lambda c: (counts[c], c))

    def _likeliest(self, generated: int, initial: LengthClass) -> LengthClass:
        """Returns the likeliest class of a response that has more than `generated` tokens and began in the class
        `initial`. On ties the longer class counts; a class that the response has already outgrown is never returned."""
        reached = self._class_of(generated)
        lengths = self._lengths.get(initial)
        if not lengths:
            return max(reached, initial)
        # The place at which each class begins among the sorted lengths beyond `generated`.
        starts = [bisect.bisect_left(lengths, max(n, generated + 1)) for n in (0, self._medium_from, self._long_from)]
        counts = [end - start for start, end in pairwise([*starts, len(lengths)])]
        if not any(counts):
            return LengthClass.LONG  # longer than all past responses with this initial class
        return max(reached, max(LengthClass, key=lambda c: (counts[c], c)))
