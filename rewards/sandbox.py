"""Many solutions judged in parallel: judges (rewards/judge.py), each with its own jailed fork server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rewards.isolation import WALL_TIME, Limits
from rewards.workers import TIMEOUTS, WorkerError, Workers, command

_GRACE_S = 2.0  # beyond the longest a solution may take, before its judge is taken for stuck

_KNOWN = {
    "source": "def f(x): return [len(bytearray(x << 24))]",  # 16 MiB, which anyone may want
    "entry": "f",
    "tests": "def check(candidate):\n    assert candidate(1) == [1 << 24]",
}


class SandboxError(RuntimeError):
    """The sandbox cannot be had on this machine; the message says what to change."""


@dataclass(frozen=True)
class Verdict:
    """Of one solution. tests: calls answered, or programs passed. seconds: in the sandbox."""

    passed: bool
    why: str
    tests: int
    seconds: float


class Sandbox:
    """Judges solutions, `parallel` at a time. Close it, or leave the process."""

    def __init__(self, parallel: int, limits: Limits, isolation: str = "full"):
        """isolation: full (namespaces), or weak, which says so on standard error. Raises SandboxError."""
        if isolation not in ("full", "weak"):
            raise SandboxError(f"reward.isolation={isolation}: choose full or weak")
        if isolation == "weak":
            text = (
                "warning: reward.isolation=weak: no namespaces around solutions, only limits and a system call filter"
            )
            print(text, file=sys.stderr)
        line = command("judge", isolation, json.dumps(asdict(limits)))
        try:
            self._workers = Workers(line, parallel, limits.longest_s + _GRACE_S)
        except WorkerError as error:
            raise SandboxError(
                f"reward.isolation={isolation} cannot be set up here: {error}; full needs user namespaces (or root) "
                "and Linux 5.12, weak does without, both need x86_64 (docs/rewards.md)"
            ) from error

        (verdict,) = self.run([_KNOWN])
        if not verdict.passed:  # limits too small to start in would silently score everything 0
            self.close()
            raise SandboxError(f"a right solution does not pass under reward.limits={asdict(limits)}: {verdict.why}")

    def run(self, jobs: Sequence[dict[str, Any]]) -> list[Verdict]:
        """Verdicts in the order of the jobs, which rewards/code.py makes."""
        stuck = Verdict(False, "its judge hung or died", 0, 0.0)
        verdicts = [stuck if found is None else Verdict(**found) for found in self._workers.ask(jobs)]
        self._workers.counts.add(TIMEOUTS, sum(verdict.why == WALL_TIME for verdict in verdicts))
        return verdicts

    def take_counts(self) -> dict[str, int]:
        """What went wrong since the last call: see rewards/workers.py."""
        return self._workers.counts.take()

    def close(self) -> None:
        """End all judges and what runs under them."""
        self._workers.close()
