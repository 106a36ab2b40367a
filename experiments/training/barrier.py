"""A barrier between arms: in each step the arms roll out one after the other, so machine noise hits all arms
equally."""

from collections.abc import Callable
from typing import Any

from das.general import stages


class Barrier:
    """Says when this process may roll out and when it may train.

    This class is for a run without other arms: it never waits, and passes each row of metrics to `report`.
    """

    waited_s = 0.0  # seconds spent on other arms (waiting, writing weights), which must not count as this arm's time

    def __init__(self, report: Callable[[dict[str, Any]], Any]):
        self.report = report

    def before_rollout(self) -> None:
        """Wait until no other arm rolls out or trains."""
        stages.now("rolls out")

    def after_rollout(self) -> None:
        """Wait until every arm has rolled out this step."""
        stages.now("trains")

    def after_step(self, row: dict[str, Any]) -> None:
        """Report a finished step to `report`. row: the step's metrics."""
        self.report(row)
