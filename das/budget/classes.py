"""The paper's deployed rule (§2.7): a draft limit for each of three length classes."""

from collections.abc import Sequence

from das.budget.length import LengthClass, LengthModel
from das.budget.policies import BudgetPolicy, LiveRequest


class Classes(BudgetPolicy):
    """A draft limit for each length class.

    short, medium, long     draft tokens per pass for a request of the class
    medium_from, long_from  response length in tokens from which a request is Medium or Long

    Raises ValueError for negative limits, for limits that are all 0, and for thresholds that do not rise.
    """

    def __init__(self, short: int = 0, medium: int = 8, long: int = 24, medium_from: int = 64, long_from: int = 160):
        if min(short, medium, long) < 0:
            raise ValueError(f"budgets must not be negative, got short={short}, medium={medium}, long={long}")
        if max(short, medium, long) == 0:
            raise ValueError("all three class budgets are 0: nothing would be drafted; for no drafts use budget=none")
        self.by_class = {LengthClass.SHORT: short, LengthClass.MEDIUM: medium, LengthClass.LONG: long}
        self.max_draft_tokens = max(self.by_class.values())
        self.lengths = LengthModel(medium=medium_from, long=long_from)

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        limits = []
        for request in live:
            if request.initial is None:
                request.initial = self.lengths.initial(request.problem)
            limits.append(self.by_class[self.lengths.current(request.generated, request.initial)])
        return limits

    def end(self, request: LiveRequest) -> None:
        if request.initial is not None:
            self.lengths.observe(request.problem, request.initial, request.generated)

    def end_step(self) -> None:
        self.lengths.refit()
