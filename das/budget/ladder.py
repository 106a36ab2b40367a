"""Draft-length ladder (EfficientRollout §4): drafts get longer from step to step if nearly all tokens are accepted."""

from collections import deque
from collections.abc import Sequence

from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass


class Ladder(BudgetPolicy):
    """Gives all requests one draft length, which may change after a step: the share of accepted drafted tokens decides.

    rungs     the draft lengths, rising; the ladder starts with the first one
    up        move one rung up if the share was at least this in each of the last `patience` steps
    down      move one rung down if the share was at most this in each of the last `patience` steps
    patience  number of steps

    Raises ValueError for rungs that do not rise and for thresholds out of range.
    """

    def __init__(self, rungs: Sequence[int] = (5, 7, 9, 11), up: float = 0.94, down: float = 0.85, patience: int = 2):
        if not rungs or list(rungs) != sorted(set(rungs)) or rungs[0] < 1:
            raise ValueError(f"budget.rungs must be draft lengths >= 1 that rise, got {list(rungs)}")
        if not 0 <= down < up <= 1 or patience < 1:
            raise ValueError(
                f"budget=ladder needs 0 <= down < up <= 1 and patience >= 1, got down={down}, up={up}, "
                f"patience={patience}"
            )
        self.rungs = list(rungs)
        self.max_draft_tokens = self.rungs[-1]
        self.rung = 0
        self._up, self._down = up, down
        self._shares: deque[float] = deque(maxlen=patience)  # accepted / drafted in the last steps with this length
        self._num_drafted = self._num_accepted = 0

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        return [self.rungs[self.rung]] * len(live)

    def observe_pass(self, done: TargetPass) -> None:
        self._num_drafted += done.num_drafted
        self._num_accepted += done.num_accepted

    def end_step(self) -> None:
        if self._num_drafted:
            self._shares.append(self._num_accepted / self._num_drafted)
        self._num_drafted = self._num_accepted = 0
        if len(self._shares) < (self._shares.maxlen or 0):
            return
        if min(self._shares) >= self._up and self.rung + 1 < len(self.rungs):
            self.rung += 1
        elif max(self._shares) <= self._down and self.rung > 0:
            self.rung -= 1
        else:
            return
        self._shares.clear()  # shares of another rung say nothing about this one
