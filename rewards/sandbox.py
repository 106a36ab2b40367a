"""Judge many solutions in parallel. Each judge process (rewards/judge.py) has its own jailed fork server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rewards.isolation import WALL_TIME, Limits
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
# In a jail there are files, so it may import what is not loaded yet: of Python's own, and of the installed packages.
_IMPORTS = "import cmath, colorsys, mmap, numpy.fft\n"


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

    def __init__(self, parallel: int, limits: Limits, isolation: str = "full"):
        """Start the judges. limits: what one solution may use. isolation: full (namespaces), or weak, which prints a
        warning to standard error. Raises SandboxError if this machine does not allow it."""
        if isolation not in ("full", "weak"):
            raise SandboxError(f"reward.isolation={isolation}: choose full or weak")
        if isolation == "weak":
            text = (
                "warning: reward.isolation=weak: no namespaces around solutions, only limits and a system call filter"
            )
            print(text, file=sys.stderr)
        command_line = command("judge", isolation, json.dumps(asdict(limits)))
        try:
            self._workers = Workers(command_line, parallel, limits.max_wall_s + _GRACE_S)
        except WorkerError as error:
            raise SandboxError(
                f"reward.isolation={isolation} does not work here: {error}; full needs user namespaces (or root) and "
                "Linux 5.12, weak needs neither, both need x86_64 (docs/data_and_rewards.md)"
            ) from error

        canary = _RIGHT if isolation == "weak" else {**_RIGHT, "source": _IMPORTS + _RIGHT["source"]}
        try:
            (verdict,) = self.run([canary])
            why = "" if verdict.passed else verdict.why
        except WorkerError as error:
            why = str(error)
        if why:  # if no solution could start under these limits, all would silently score 0
            self.close()
            under = f"reward.isolation={isolation} and reward.limits={asdict(limits)}"
            raise SandboxError(f"a right solution does not pass under {under}: {why}")

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
