"""Many solutions judged in parallel: a pool of judges (rewards/judge.py), each with its own jailed fork server."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any

from rewards.isolation import Limits
from rewards.judge import command

_GRACE_S = 2.0  # beyond a solution's wall time, before its judge is taken for stuck
_START_S = 60.0  # for a judge to come up, on a machine that is busy with other things


class SandboxError(RuntimeError):
    """The sandbox cannot be had on this machine, or broke; the message says what to change."""


@dataclass(frozen=True)
class Verdict:
    """Of one solution. tests: calls answered or programs passed. seconds: in the sandbox."""

    passed: bool
    why: str
    tests: int
    seconds: float


class _Judge:
    """One judge process; replaced when it hangs or dies."""

    def __init__(self, isolation: str, limits: Limits):
        self.limits = limits
        self.process = subprocess.Popen(
            command("judge", isolation, json.dumps(asdict(limits))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # killed as a group; an interrupt at the terminal is the trainer's to handle
        )
        started = self._line(_START_S)
        if started is None or not started["ready"]:
            self.stop()
            raise SandboxError(
                f"the sandbox (reward.isolation={isolation}) cannot be set up here: "
                f"{started['why'] if started else 'it ended or did not answer'}; full needs unprivileged user "
                "namespaces or root, and Linux 5.12; reward.isolation=weak needs neither (docs/rewards.md)"
            )

    def _line(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line of the judge; None if it has ended or says nothing in time."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        line = self.process.stdout.readline() if ready else b""
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    def judge(self, job: bytes) -> Verdict | None:
        """Judge one job; None if this judge did not survive it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(job)
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        found = self._line(self.limits.wall_s + _GRACE_S)
        return None if found is None else Verdict(not found["why"], found["why"], found["tests"], found["seconds"])

    def stop(self) -> None:
        """Kill it and, through its control socket and namespaces, everything below it."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate()


class Sandbox:
    """Judges solutions, `parallel` at a time. Close it, or leave the process."""

    def __init__(self, parallel: int, limits: Limits, isolation: str = "full"):
        """isolation: full (namespaces), or weak, which says so on standard error. Raises SandboxError."""
        if isolation not in ("full", "weak"):
            raise SandboxError(f"reward.isolation={isolation}: choose full or weak")
        if isolation == "weak":
            print(
                "warning: reward.isolation=weak: solutions can read every file that their user can read "
                "(docs/rewards.md)",
                file=sys.stderr,
            )
        self._make = lambda: _Judge(isolation, limits)
        self._free: SimpleQueue[_Judge] = SimpleQueue()
        self._all: set[_Judge] = set()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(parallel, "judge")
        atexit.register(self.close)
        for judge in self._threads.map(lambda _: self._make(), range(parallel)):
            self._all.add(judge)
            self._free.put(judge)

    def _judge(self, job: dict[str, Any]) -> Verdict:
        line = json.dumps(job).encode() + b"\n"
        judge = self._free.get()
        try:
            verdict = judge.judge(line)
            if verdict is None:
                judge = self._replace(judge)
                verdict = Verdict(False, "its judge hung or died", 0, 0.0)
            return verdict
        finally:
            self._free.put(judge)

    def _replace(self, judge: _Judge) -> _Judge:
        judge.stop()
        new = self._make()
        with self._lock:
            self._all.remove(judge)
            self._all.add(new)
        return new

    def run(self, jobs: Sequence[dict[str, Any]]) -> list[Verdict]:
        """Verdicts in the order of the jobs, which rewards/code.py makes. Raises SandboxError if judges cannot be had."""
        return list(self._threads.map(self._judge, jobs))

    def close(self) -> None:
        """End all judges and what runs under them."""
        atexit.unregister(self.close)
        self._threads.shutdown(cancel_futures=True)
        for judge in self._all:
            judge.stop()
        self._all.clear()
