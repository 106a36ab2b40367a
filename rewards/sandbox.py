"""Judge many solutions in parallel. Each judge process (rewards/judge.py) has its own fork server."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rewards.limits import MACHINE, WALL_TIME, Limits
from rewards.reward import RewardError
from rewards.workers import TIMEOUTS, JudgeError, WorkerError, Workers, command

# A judge counts as stuck if it takes this many seconds longer than a solution may take.
_GRACE_S = 2.0

# A right solution, which must pass before anything else is judged. It uses 16 MiB, as any solution may.
_RIGHT = {
    "source": "def f(x): return [len(bytearray(x << 24))]",
    "entry": "f",
    "tests": "def check(candidate):\n    assert candidate(1) == [1 << 24]",
}
# The whole environment of a judge, and so of every solution. The hash seed is fixed so that sets have the same order in
# every run.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}


class SandboxError(JudgeError):
    """The sandbox does not work on this machine; the message says what to change."""


@dataclass(frozen=True)
class Verdict:
    """The judgement on one solution.

    tests: number of answered calls, or of passed runs of a program. seconds: time in the sandbox, by the clock.
    """

    passed: bool
    why: str
    tests: int
    seconds: float


class Sandbox:
    """Judges solutions, `parallel` at a time. The judge processes end with `close`, or when this process ends."""

    def __init__(self, parallel: int, limits: Limits):
        """Start the judges. limits: what one solution may use. Raises SandboxError if this machine is another than the
        sandbox is made for, or if no solution passes under these limits."""
        if platform.machine() != MACHINE:
            raise SandboxError(f"the sandbox needs Linux on {MACHINE}, and this machine is {platform.machine()}")
        command_line = command("judge", json.dumps(asdict(limits)))
        try:
            self._workers = Workers(command_line, parallel, limits.max_wall_s + _GRACE_S, environment=_ENVIRONMENT)
        except WorkerError as error:
            raise SandboxError(f"no judge could start: {error}") from error
        try:
            (verdict,) = self.run([_RIGHT])
            why = "" if verdict.passed else verdict.why
        except WorkerError as error:
            why = str(error)
        if why:  # if no solution could start under these limits, all would silently score 0
            self.close()
            raise SandboxError(f"a right solution does not pass under reward.limits={asdict(limits)}: {why}")

    def run(self, jobs: Sequence[dict[str, Any]]) -> list[Verdict]:
        """Run jobs made by `job` of rewards/code.py. Returns verdicts in the order of the jobs.

        Raises RewardError for tests that fail by themselves, WorkerError if the sandbox fails twice over a job: neither
        says anything about the solution.
        """
        unanswered = Verdict(False, "its judge hung or died", 0, 0.0)
        answers = self._workers.ask(jobs)
        for answer in answers:
            if answer is not None and "error" in answer:
                raise RewardError(f"the tests of a problem cannot be run: {answer['error']}")
        verdicts = [unanswered if answer is None else Verdict(**answer) for answer in answers]
        self._workers.counts.add(TIMEOUTS, sum(verdict.why == WALL_TIME for verdict in verdicts))
        return verdicts

    def take_counts(self) -> dict[str, int]:
        """Return how often workers died, failed or were too slow since the last call (keys: see rewards/workers.py)."""
        return self._workers.counts.take()

    def close(self) -> None:
        """Kill all judge processes, with their fork servers and solutions."""
        self._workers.close()
