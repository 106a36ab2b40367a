"""Worker processes that answer JSON lines, each answer within a time limit: what hangs or dies is replaced.

A worker is `main` of a module of this package. Its first line says {"ready": true} or {"ready": false, "why": ...};
then it answers every line it gets with one line.
"""

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_START_S = 300.0  # for a worker to come up, on a machine busy with other things; one that dies is noticed at once


@dataclass
class Tally:
    """What went wrong with the workers of this process. One for all kinds: a process trains with one reward."""

    deaths: int = 0  # workers that died over a question, which then was asked once more
    failures: int = 0  # questions left without an answer: the worker hung, or the second one died too
    timeouts: int = 0  # solutions that the clock ended, not their CPU time

    def add(self, deaths: int = 0, failures: int = 0, timeouts: int = 0) -> None:
        """Count, from any thread."""
        with _COUNTING:
            self.deaths += deaths
            self.failures += failures
            self.timeouts += timeouts

    def take(self) -> dict[str, int]:
        """The counts since the last call, by their names in metrics.jsonl."""
        with _COUNTING:
            found = {f"judge_{name}": count for name, count in vars(self).items()}
            self.deaths = self.failures = self.timeouts = 0
        return found


TALLY = Tally()
_COUNTING = threading.Lock()


class WorkerError(RuntimeError):
    """A worker cannot be started; the message is its own, or says that there was none."""


def command(module: str, *arguments: str) -> list[str]:
    """Command line that calls `main` of rewards/`module`.py, with nothing of the user's own on the path."""
    boot = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from rewards.{module} import main; main()"
    return [sys.executable, "-s", "-P", "-c", boot, *arguments]


class _Worker:
    """One process."""

    def __init__(self, line: list[str]):
        # A process group of its own: killed as one, and an interrupt at the terminal is the trainer's to handle.
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        try:
            said = self._read(_START_S)
        except EOFError:
            said = None
        if said is None or not said["ready"]:
            self.stop()
            raise WorkerError(said["why"] if said else "a worker ended or did not answer: see the log above")

    def _read(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line; None if the process says nothing in time. Raises EOFError if it has ended."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        if not ready:
            return None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return dict(json.loads(line))

    def ask(self, question: bytes, timeout_s: float) -> dict[str, Any] | None:
        """The answer to one line; None if it takes too long. Raises EOFError if the process died over it."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer to read either
            self.process.stdin.write(question)
            self.process.stdin.flush()
        return self._read(timeout_s)

    def stop(self) -> None:
        """Kill the process and its group, and reap it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            self.process.communicate()


class Workers:
    """`parallel` workers of one kind. They end with close, or with this process, however it ends."""

    def __init__(self, line: list[str], parallel: int, timeout_s: float):
        """line: see command. timeout_s: for one answer. Raises WorkerError."""
        self._line, self._timeout_s = line, timeout_s
        self._free: SimpleQueue[_Worker] = SimpleQueue()
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
        worker = _Worker(self._line)
        with self._lock:
            self._all.add(worker)
        self._free.put(worker)

    def _ask(self, question: Any) -> dict[str, Any] | None:
        line = json.dumps(question).encode() + b"\n"
        for _ in range(2):
            worker = self._free.get()
            try:
                answer = worker.ask(line, self._timeout_s)
            except EOFError:  # killed from outside, or by the question: asking once more tells
                self._replace(worker)
                TALLY.add(deaths=1)
                if worker.process.returncode == -signal.SIGXCPU:  # so it would end again
                    break
                continue
            if answer is not None:
                self._free.put(worker)
                return answer
            self._replace(worker)
            break
        TALLY.add(failures=1)
        return None

    def _replace(self, worker: _Worker) -> None:
        worker.stop()
        with self._lock:
            self._all.remove(worker)
        self._start()

    def ask(self, questions: Sequence[Any]) -> list[dict[str, Any] | None]:
        """Answers in the order of the questions; None where a worker hung, or two died, over it. Raises WorkerError."""
        return list(self._threads.map(self._ask, questions))

    def close(self) -> None:
        """Kill all workers."""
        atexit.unregister(self.close)
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.stop()
        self._all.clear()
