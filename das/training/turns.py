"""Turns: arms that are compared roll out one at a time, step by step, so that machine noise hits all alike."""

import time
from multiprocessing.connection import Connection
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


class PipeTurns:
    """Turns handed out by `experiments.tasks.compare` over a pipe."""

    def __init__(self, pipe: Connection):
        self.pipe = pipe
        self.waited_s = 0.0

    def _ask(self, what: str) -> None:
        start = time.perf_counter()
        self.pipe.send((what, None))
        self.pipe.recv()
        self.waited_s += time.perf_counter() - start

    def before_rollout(self) -> None:
        self._ask("rollout")

    def after_rollout(self) -> None:
        self._ask("rolled")

    def after_step(self, row: dict[str, Any]) -> None:
        self.pipe.send(("step", row))


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
