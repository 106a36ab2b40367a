"""Turns: arms that are compared roll out one at a time, step by step, so that machine noise hits all alike."""

from typing import Any, Protocol


class Turns(Protocol):
    """When this process may roll out and when it may train. `waited_s` is time that must not count as the arm's own."""

    waited_s: float

    def before_rollout(self) -> None:
        """Return when no other arm is busy."""

    def after_rollout(self) -> None:
        """Return when all arms have rolled out this step."""

    def after_step(self, row: dict[str, Any]) -> None:
        """Report the finished step."""


class Alone:
    """No other arm: never waits, hands each row to `report`."""

    waited_s = 0.0

    def __init__(self, report: Any):
        self.report = report

    def before_rollout(self) -> None:
        pass

    def after_rollout(self) -> None:
        pass

    def after_step(self, row: dict[str, Any]) -> None:
        self.report(row)
