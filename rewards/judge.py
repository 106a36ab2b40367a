"""Judge: a trusted process that runs tests against a solution, which runs in the sandbox.

The judge alone knows the expected values. The tests call `candidate`, which sends the arguments to a confined child and
returns the child's answer as plain data (rewards/values.py). So values are compared here, in the judge. A solution can
answer anything, but it cannot write a verdict, change a check, or find an expected value.

The judge reads jobs as JSON lines from standard input and writes verdicts as JSON lines to standard output.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from rewards import values
from rewards.checker import same_output, same_value
from rewards.forkserver import ASK, KILL, ORDER, REPORT, RUNNING, START, UNCONFINED, forked
from rewards.limits import CPU_TIME, MIN_CPU_SHARE, WALL_TIME, Limits, address_space, limit_cpu, limit_memory
from rewards.process import die_with_parent
from rewards.solution import MAX_DIGITS
from rewards.workers import FAILED

_NAMES_FOR_TESTS = {
    "list_node": values.list_node,
    "tree_node": values.tree_node,
    "is_same_list": values.is_same_list,
    "is_same_tree": values.is_same_tree,
    "same_value": same_value,
}
# What comparing an answer of an unexpected kind or size with the expected value raises. Any other error is the tests'.
_UNEXPECTED = (
    TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, StopIteration,
    UnboundLocalError, MemoryError,
)  # fmt: skip
_ROUNDING_S = 1e-6  # seconds of rounding errors in a sum of CPU times
# Extra bytes of address space that the judge may use after its start. To parse a malicious answer of a few MB can
# take a hundred times as much memory.
_MEMORY_BYTES = 512 << 20
_CHECK_S = 0.5  # seconds between two checks of the CPU time of a solution that has exceeded its wall time


_SERVER_ENDED = "the server that starts solutions ended; if memory ran out, lower reward.parallel or memory_mb"
PASSED = "passed"  # the reason in the verdict on a solution that passed


class Failed(BaseException):
    """The solution cannot continue. The text says why.

    This class is not an Exception, so that tests which catch exceptions do not catch it.
    """


class CandidateError(Exception):
    """The solution raised an exception. The text describes that exception."""


class Broken(BaseException):
    """The sandbox failed, and the solution is not to blame. The text says how. Not an Exception, like Failed."""


class TestsError(Exception):
    """The tests cannot be run, whatever the solution is. The text says why."""


class Child:
    """One confined process, from its fork to its end. No method waits longer than the solution may take."""

    def __init__(self, server: socket.socket, began: float, spent_s: float, limits: Limits):
        """Start the child.

        server: the fork server's control socket. began: when the solution began, by time.monotonic(). spent_s: CPU
        seconds that earlier children of the same solution used.
        """
        self.began, self.spent_s, self.limits = began, spent_s, limits
        self.next_check = began + limits.wall_s
        self.control = server
        self.exit: tuple[int, float] | None = None
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        self.output, output = os.pipe()
        order = ORDER.pack(START, max(0.0, limits.cpu_s - spent_s))
        try:
            socket.send_fds(self.control, [order], [requests, replies, output])
        except OSError as error:
            raise Broken(_SERVER_ENDED) from error
        for fd in (requests, replies, output):
            os.close(fd)
        os.set_blocking(self.requests, False)

    def _wait(self, fd: int, event: int) -> None:
        """Wait until `fd` is ready. Raises Failed if the solution has exceeded its wall time and sleeps.

        A solution that computes may go on until its CPU time is used up. On a busy machine that takes longer by the
        clock, and the verdict must not depend on how busy the machine is.
        """
        poll = select.poll()
        poll.register(fd, event)
        while not poll.poll(max(0.0, self.next_check - time.monotonic()) * 1000):
            self._order(ASK)
            status, cpu_s = self._report()
            if status != RUNNING:
                return
            now = time.monotonic()
            if self.spent_s + cpu_s < MIN_CPU_SHARE * (now - self.began):
                raise Failed(WALL_TIME)
            self.next_check = now + _CHECK_S

    def _order(self, order: bytes) -> None:
        try:
            self.control.sendall(ORDER.pack(order, 0.0))
        except OSError as error:
            raise Broken(_SERVER_ENDED) from error

    def _report(self) -> tuple[int, float]:
        """Receive the fork server's next report: the child's wait status or RUNNING, and its CPU seconds."""
        try:
            report = self.control.recv(REPORT.size)
        except ConnectionError:
            report = b""
        if not report:
            raise Broken(_SERVER_ENDED)
        status, cpu_s = REPORT.unpack(report)
        if status != RUNNING:
            self.exit = status, cpu_s
        return status, cpu_s

    def send(self, data: bytes) -> None:
        """Send a message to the child. If the child has ended, the next wait for its reply will show that."""
        view = memoryview(struct.pack("<I", len(data)) + data)
        while view:
            self._wait(self.requests, select.POLLOUT)
            try:
                view = view[os.write(self.requests, view) :]
            except BrokenPipeError:
                return

    def read(self, fd: int, size: int, exactly: bool) -> bytes:
        """Read from `fd` until `size` bytes have come or the stream ends. exactly: raise Failed if the stream ends
        earlier."""
        parts = bytearray()
        while len(parts) < size:
            self._wait(fd, select.POLLIN)
            part = os.read(fd, min(size - len(parts), 1 << 16))
            if not part:
                if exactly:
                    raise Failed(self.end() or "ended before it answered")
                break
            parts += part
        return bytes(parts)

    def receive(self) -> Any:
        """Return the value of the next reply. Raises CandidateError if the solution raised an exception, Failed if the
        reply is malformed.
        """
        (size,) = struct.unpack("<I", self.read(self.replies, 4, exactly=True))
        if size > self.limits.output_kb << 10:
            raise Failed("returned too much")
        data = self.read(self.replies, size, exactly=True)
        try:
            kind, value = values.decode(data)
        except ValueError as error:
            raise Failed(f"irregular reply: {str(error)[:80]}") from None
        if kind != "value":
            raise CandidateError(str(value)[:200])
        return value

    def end(self) -> str:
        """Wait until the child ends. Returns how it failed; "" if it ended well. Raises Failed as _wait does.

        Raises Broken if the child was never confined, or if somebody else killed it. A solution cannot send signals.
        """
        if self.exit is None:
            self._wait(self.control.fileno(), select.POLLIN)
        if self.exit is None:
            self._report()
        assert self.exit is not None
        status, cpu_s = self.exit
        if status == UNCONFINED:
            raise Broken("a process could not be confined (its error is in the log)")
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL and self.spent_s + cpu_s > self.limits.cpu_s - _ROUNDING_S:
            return CPU_TIME
        if code == -signal.SIGKILL:
            raise Broken("a solution was killed from outside; if memory ran out, lower reward.parallel or memory_mb")
        return f"ended by signal {-code}" if code < 0 else f"exit status {code}" if code else ""

    def close(self) -> float:
        """Kill the child if it still runs, and release its descriptors. Returns its CPU seconds."""
        if self.exit is None:
            self._order(KILL)
        while self.exit is None:
            self._report()
        for fd in (self.requests, self.replies, self.output):
            os.close(fd)
        return self.exit[1]


@dataclass(frozen=True)
class Outcome:
    """The judgement on one solution. tests: number of answered calls, or of passed runs of a program."""

    passed: bool
    why: str
    tests: int


def functional(server: socket.socket, job: dict[str, Any], limits: Limits) -> Outcome:
    """Judge a function: run `check(candidate)` of its tests. job: made by rewards/code.py.

    Raises TestsError if its tests fail by themselves, Broken if the sandbox does.
    """
    names: dict[str, Any] = dict(_NAMES_FOR_TESTS)
    try:  # PYTHONOPTIMIZE must not remove its assertions
        exec(compile(job["tests"], "tests", "exec", optimize=0), names)
        check = names["check"]
    except Exception as error:
        raise TestsError(_described(error)) from error
    request = {"source": job["source"], "entry": job["entry"], "stdin": None}
    child = Child(server, time.monotonic(), 0.0, limits)
    calls = 0
    failure = ""  # stored, because tests with a bare `except:` catch Failed
    broken: Broken | None = None  # stored, too

    def candidate(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls, failure, broken
        try:
            child.send(values.encode([arguments, keywords]))
            value = child.receive()
        except Failed as error:
            failure = str(error)
            raise
        except Broken as error:
            broken = error
            raise
        calls += 1
        return value

    reason = ""
    try:
        child.send(values.encode(request))
        child.receive()
        check(candidate)
    except Failed as error:
        reason = str(error)
    except CandidateError as error:
        reason = f"raised {error}"
    except AssertionError:
        reason = "wrong answer"
    except _UNEXPECTED as error:
        reason = f"wrong kind of answer: {type(error).__name__}"
    except Exception as error:
        if type(error) is not Exception:  # which tests raise themselves, in place of AssertionError
            raise TestsError(_described(error)) from error
        reason = "wrong answer"
    finally:
        cpu_s = child.close()
    if broken is not None:
        raise broken
    reason = reason or failure
    if not reason and not calls:
        reason = "the tests never called it"
    if not reason and cpu_s > limits.cpu_s:  # it answered everything before the fork server noticed
        reason = CPU_TIME
    return Outcome(not reason, reason or PASSED, calls)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def programs(server: socket.socket, job: dict[str, Any], limits: Limits) -> Outcome:
    """Judge a program: run it once for each [input, expected output]. All runs share the time of one solution."""
    began, spent_s = time.monotonic(), 0.0
    for passed, (stdin, expected) in enumerate(job["tests"]):
        child = Child(server, began, spent_s, limits)
        try:
            child.send(values.encode({"source": job["source"], "stdin": stdin}))
            output = child.read(child.output, (limits.output_kb << 10) + 1, exactly=False)
            if len(output) > limits.output_kb << 10:
                return Outcome(False, "wrote too much", passed)
            ending = child.end()
        except Failed as error:
            return Outcome(False, str(error), passed)
        finally:
            spent_s += child.close()
        if ending:
            return Outcome(False, ending, passed)
        if spent_s > limits.cpu_s:
            return Outcome(False, CPU_TIME, passed)
        if not same_output(output.decode(errors="surrogateescape"), expected):
            return Outcome(False, "wrong answer", passed)
    count = len(job["tests"])
    return Outcome(count > 0, PASSED if count else "no tests", count)


def main() -> None:
    """Body of a worker process (rewards/workers.py). Its argument: limits as JSON."""
    die_with_parent()  # otherwise the end of standard input would be noticed only between two jobs
    limits = Limits(**json.loads(sys.argv[1]))
    sys.set_int_max_str_digits(MAX_DIGITS)
    server = forked(limits)  # before there is anything that a solution could look for
    jobs, verdicts = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what tests print must not be read as a verdict
    print(json.dumps({"ready": True}), file=verdicts)
    limit_memory(address_space() + _MEMORY_BYTES)
    for line in jobs:
        limit_cpu(limits.cpu_s + 1)  # a malicious answer can be slow to compare
        job = json.loads(line)
        began = time.perf_counter()
        try:
            outcome = (functional if "entry" in job else programs)(server, job, limits)
            answer = {**asdict(outcome), "seconds": time.perf_counter() - began}
        except TestsError as error:
            answer = {"error": f"{error}; they begin {job['tests'][:80]!r}"}
        except Broken as error:
            answer = {FAILED: str(error)}
        print(json.dumps(answer), file=verdicts)
