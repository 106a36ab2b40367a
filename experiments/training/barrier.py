"""A barrier between arms: they roll out one after the other in each step, so that machine noise hits all alike."""

from typing import Any, Protocol


class Barrier(Protocol):
    """Says when this process may roll out and when it may train."""

    waited_s: float  # seconds spent waiting for other arms, which must not count as this arm's time

    def before_rollout(self) -> None:
        """Wait until no other arm is busy."""

    def after_rollout(self) -> None:
        """Wait until every arm has rolled out this step."""

    def after_step(self, row: dict[str, Any]) -> None:
        """Report the finished step."""


class NoBarrier:
    """For a run without other arms: it never waits, and hands each row to `report`."""

    waited_s = 0.0

    def __init__(self, report: Any):
        self.report = report

    def before_rollout(self) -> None:
        pass

    def after_rollout(self) -> None:
        pass

    def after_step(self, row: dict[str, Any]) -> None:
        self.report(row)
