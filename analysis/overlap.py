"""Compute how long a trainer waits for rollouts that run beside the training, at a fixed lag."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from analysis.record import Rows


def exposed_times(rollout_s: Sequence[float], train_s: Sequence[float], lag: int) -> list[float]:
    """Return the seconds that the trainer waits for the rollout of each step.

    At the start of step n the trainer submits rollout n + lag; the engine takes rollouts in order, one at a time. The
    last `lag` steps submit nothing. rollout_s, train_s: seconds of each step's rollout and of its training, without the
    other.
    """
    now = engine_free = 0.0
    ends: list[float] = []
    waits = []
    for step, own_train_s in enumerate(train_s):
        while len(ends) <= min(step + lag, len(rollout_s) - 1):
            engine_free = max(engine_free, now) + rollout_s[len(ends)]
            ends.append(engine_free)
        waits.append(max(0.0, ends[step] - now))
        now += waits[-1] + own_train_s
    return waits


def hidden_share(exposed_s: Sequence[float], rollout_s: Sequence[float], train_s: Sequence[float]) -> float:
    """Return how much of the shorter activity (generation or training) ran beside the longer one, as a share from 0 to
    1.

    The first step does not count, because no training runs beside its rollout. exposed_s, rollout_s, train_s: seconds
    by step.
    """
    generation, training = sum(rollout_s[1:]), sum(train_s[:-1])
    return (generation - sum(exposed_s[1:])) / min(generation, training)


@dataclass(frozen=True)
class Times:
    """The times of one arm's steps, in seconds. All means leave out the first step."""

    rollout_s: Sequence[float]
    exposed_s: Sequence[float]
    train_s: Sequence[float]

    @property
    def exposed(self) -> float:
        """The mean seconds that the trainer waited for a rollout."""
        return mean(self.exposed_s[1:])

    @property
    def step(self) -> float:
        return self.exposed + mean(self.train_s[1:])

    @property
    def hidden(self) -> float:
        """How much of the shorter activity (generation or training) ran beside the other one, as a share."""
        return hidden_share(self.exposed_s, self.rollout_s, self.train_s)

    def at_lag(self, lag: int) -> "Times":
        """Return the predicted times of the same work at another lag. The queue of rollouts is simulated. This object
        must hold times at lag 0."""
        return Times(self.exposed_s, exposed_times(self.exposed_s, self.train_s, lag), self.train_s)


def step_times(rows: Rows) -> Times:
    """Return the times of an arm's steps."""
    exposed_s = [row["exposed_s"] for row in rows]
    train_s = [row["step_s"] - exposed for row, exposed in zip(rows, exposed_s, strict=True)]
    return Times([row["rollout_s"] for row in rows], exposed_s, train_s)
