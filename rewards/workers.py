"""A pool of worker processes that answer JSON lines. A worker that hangs or dies is replaced.

A worker runs `main` of a module of this package. Its first line is {"ready": true} or {"ready": false, "why": ...}.
After that it answers each line that it receives with one line. After an answer with {"retires": true} it ends. With
{"failed": WHY} it says that it failed itself, and no answer is to blame. It ends too, and the question is asked once
more.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rewards.limits import cpu_seconds

_ROOT = Path(__file__).resolve().parent.parent
# Seconds in which a worker must start. It is long because the machine may be busy with other work. A worker that dies
# while it starts is noticed at once.
_START_S = 300.0

_CHECK_S = 0.05  # shortest time between two checks of a worker's CPU time
RETIRES = "retires"  # key of an answer: whether the worker ends after it and must be replaced
FAILED = "failed"  # key of an answer that is none: why the worker failed

# What can go wrong with workers is counted under these names, in metrics.jsonl too.
DEATHS = "judge_deaths"  # workers that died or failed over a question, which is asked at most once more
FAILURES = "judge_failures"  # questions without an answer: the worker hung, or the second worker died too
TIMEOUTS = "judge_timeouts"  # solutions that were ended by the clock, not by their CPU time


class Counts:
    """Counts what goes wrong with one pool of workers: deaths, failures, timeouts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = no_counts()

    def add(self, name: str, amount: int = 1) -> None:
        """Add to the count of `name`: DEATHS, FAILURES or TIMEOUTS."""
        with self._lock:
            self._counts[name] += amount

    def take(self) -> dict[str, int]:
        """Return the counts since the last call, and start again from zero."""
        with self._lock:
            counts, self._counts = self._counts, no_counts()
        return counts


def no_counts() -> dict[str, int]:
    """Return a count of zero under each name, for a reward that uses no workers."""
    return {DEATHS: 0, FAILURES: 0, TIMEOUTS: 0}


class JudgeError(RuntimeError):
    """A judge failed, and no answer is to blame, so none may score 0 for it. The message says in a line what failed."""


class WorkerError(JudgeError):
    """Raised if a worker could not start, or if two failed over a question. The message is the worker's own, or says
    that the worker sent none."""


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that calls `main` of rewards/`module`.py, without the user's own site-packages."""
    boot = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from rewards.{module} import main; main()"
    return [sys.executable, "-s", "-P", "-c", boot, *arguments]


class _Worker:
    """One worker process, to which questions are sent as lines."""

    def __init__(self, command_line: list[str], environment: dict[str, str] | None):
        # The process gets its own session, so that it can be killed together with its children, and an interrupt at the
        # terminal does not reach it.
        self.process = subprocess.Popen(
            command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        try:
            greeting = self._read(_START_S)
        except EOFError:
            greeting = None
        if greeting is None or not greeting["ready"]:
            self.stop()
            raise WorkerError(greeting["why"] if greeting else "a worker ended or did not answer: see the log above")

    def _read(self, timeout_s: float) -> dict[str, Any] | None:
        """Read the next line; None on a timeout. Raises EOFError if the process has ended."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        if not ready:
            return None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return dict(json.loads(line))

    def ask(self, question: bytes, timeout_s: float, max_cpu_s: float) -> dict[str, Any] | None:
        """Ask one question. Returns the answer; None if the process used up its CPU time.

        Raises EOFError if the process died, TimeoutError if it did not answer in time though it had CPU time left: then
        the machine was paused, or the process sleeps.
        """
        assert self.process.stdin is not None
        end, end_cpu_s = time.monotonic() + timeout_s, cpu_seconds(self.process.pid) + max_cpu_s
        with suppress(BrokenPipeError):  # the process has ended; reading its answer then raises EOFError
            self.process.stdin.write(question)
            self.process.stdin.flush()
        while True:
            remaining_s, remaining_cpu_s = end - time.monotonic(), end_cpu_s - cpu_seconds(self.process.pid)
            if remaining_s <= 0 or remaining_cpu_s <= 0:
                answer = self._read(0.0)
                if answer is None and remaining_cpu_s > 0:
                    raise TimeoutError
                return answer
            answer = self._read(min(remaining_s, max(_CHECK_S, remaining_cpu_s)))
            if answer is not None:
                return answer

    def stop(self) -> None:
        """Kill the process together with its process group, and wait for its end."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            self.process.communicate()


class Workers:
    """A pool of `parallel` workers. They end with `close`, or when this process ends in any way."""

    def __init__(
        self,
        command_line: list[str],
        parallel: int,
        timeout_s: float,
        max_cpu_s: float = math.inf,
        environment: dict[str, str] | None = None,
    ):
        """Start the workers. Raises WorkerError.

        command_line: see `command`. timeout_s: seconds by the clock for one answer. max_cpu_s: CPU seconds of a worker
        for one answer. environment: the workers' whole environment; None is this process's.
        """
        self.counts = Counts()
        self._command_line, self._environment = command_line, environment
        self._timeout_s, self._max_cpu_s = timeout_s, max_cpu_s
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(parallel, "reward")
        atexit.register(self.close)
        try:
            list(self._threads.map(lambda _: self._start(), range(parallel)))
        except WorkerError:
            self.close()
            raise

    def _start(self) -> None:
        worker = _Worker(self._command_line, self._environment)
        with self._lock:
            self._all.add(worker)
        self._idle.put(worker)

    def _ask(self, question: Any) -> dict[str, Any] | None:
        line = json.dumps(question).encode() + b"\n"
        failed = ""
        for _ in range(2):
            worker = self._idle.get()
            try:
                answer = worker.ask(line, self._timeout_s, self._max_cpu_s)
                failed = "" if answer is None else answer.get(FAILED, "")
                if failed:
                    raise EOFError
            except (EOFError, TimeoutError):  # a second worker will show whether the question is to blame
                self._replace(worker)
                self.counts.add(DEATHS)
                if worker.process.returncode == -signal.SIGXCPU:  # it used up its CPU time: no second try
                    break
                continue
            if answer is not None:
                if answer.pop(RETIRES, False):
                    self._replace(worker)
                else:
                    self._idle.put(worker)
                return answer
            self._replace(worker)
            break
        if failed:
            raise WorkerError(failed)
        self.counts.add(FAILURES)
        return None

    def _replace(self, worker: _Worker) -> None:
        worker.stop()
        with self._lock:
            self._all.remove(worker)
        self._start()

    def ask(self, questions: Sequence[Any]) -> list[dict[str, Any] | None]:
        """Ask all questions. Returns the answers in the same order. Raises WorkerError, also if two workers failed over
        a question.

        An answer is None if a worker used up its CPU time on the question, or if two workers died or hung on it.
        """
        return list(self._threads.map(self._ask, questions))

    def close(self) -> None:
        """Kill all workers."""
        atexit.unregister(self.close)
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.stop()
        self._all.clear()
