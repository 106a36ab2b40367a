"""Judge: a trusted process that runs tests against a solution which lives in the sandbox.

It alone knows the expected values. `candidate`, as the tests call it, sends the arguments to a confined child and
returns what comes back as plain data (rewards/values.py), so the comparison happens here, on real values: a solution
can answer what it likes, but there is no verdict for it to write, no check to patch and no answer to find. Jobs come as
JSON lines on standard input, verdicts leave the same way.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

from das.process import die_with_parent
from rewards import isolation, values
from rewards.forkserver import REPORT, RUNNING
from rewards.isolation import LEAST_SHARE, WALL_TIME, Limits
from rewards.workers import command

# The fork server's whole environment, and so a solution's. Fixed hashing: sets are ordered alike in every run.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
_GIVEN = {
    "list_node": values.list_node,
    "tree_node": values.tree_node,
    "is_same_list": values.is_same_list,
    "is_same_tree": values.is_same_tree,
}
_LOOK_S = 0.5  # between two looks at what a solution does that is beyond its wall time


class Failed(BaseException):
    """The solution cannot go on; tests that tolerate exceptions must not swallow this. Its text is the reason."""


class CandidateError(Exception):
    """The solution raised; its text is what it raised."""


class ForkServer:
    """The one fork server of this judge."""

    def __init__(self, isolation_mode: str, limits: Limits):
        """Raises OSError with the kernel's reason where the machine does not allow this isolation."""
        self.control, theirs = socket.socketpair()
        with tempfile.TemporaryDirectory(prefix="jail-") as root:
            arguments = [str(theirs.fileno()), isolation_mode, root, json.dumps(asdict(limits))]
            self.process = subprocess.Popen(
                command("forkserver", *arguments),
                pass_fds=[theirs.fileno()],
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            theirs.close()
            lines = self.control.makefile()
            said = lines.readline()
            if said == "U\n":
                isolation.map_ids(self.process.pid)
                self.control.sendall(b"M")
                said = lines.readline()
        if said != "S\n":
            raise OSError(0, said[1:].strip() or "the fork server ended")


class Child:
    """One confined process, from fork to end. No wait is longer than its solution may take."""

    def __init__(self, server: ForkServer, began: float, spent_s: float, limits: Limits):
        """began: of the solution, as time.monotonic. spent_s: CPU seconds of its children before this one."""
        self.began, self.spent_s, self.limits = began, spent_s, limits
        self.look = began + limits.wall_s
        self.control = server.control
        self.exit: tuple[int, float] | None = None
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        self.output, output = os.pipe()
        socket.send_fds(self.control, [b"R"], [requests, replies, output])
        for fd in (requests, replies, output):
            os.close(fd)
        os.set_blocking(self.requests, False)

    def _wait(self, fd: int, event: int) -> None:
        """Wait until `fd` is ready. Raises Failed for a solution that sleeps beyond its wall time.

        One that computes is ended by its CPU time: on a busy machine that takes longer by the clock, and the verdict
        must not depend on it.
        """
        poll = select.poll()
        poll.register(fd, event)
        while not poll.poll(max(0.0, self.look - time.monotonic()) * 1000):
            self.control.sendall(b"T")
            status, cpu_s = self._report()
            if status != RUNNING:
                return
            now = time.monotonic()
            if self.spent_s + cpu_s < LEAST_SHARE * (now - self.began):
                raise Failed(WALL_TIME)
            self.look = now + _LOOK_S

    def _report(self) -> tuple[int, float]:
        """The fork server's next report: wait status, or RUNNING, and CPU seconds."""
        status, cpu_s = REPORT.unpack(self.control.recv(REPORT.size, socket.MSG_WAITALL))
        if status != RUNNING:
            self.exit = status, cpu_s
        return status, cpu_s

    def send(self, data: bytes) -> None:
        """Send a message; a child that has ended is noticed when its reply is awaited."""
        view = memoryview(struct.pack("<I", len(data)) + data)
        while view:
            self._wait(self.requests, select.POLLOUT)
            try:
                view = view[os.write(self.requests, view) :]
            except BrokenPipeError:
                return

    def read(self, fd: int, size: int, exactly: bool) -> bytes:
        """Read `size` bytes; with `exactly` an earlier end raises Failed."""
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
        """The value of the next reply. Raises CandidateError for an exception, Failed for anything irregular."""
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
        """Wait for the child's end and say how it ended ("" for well). Raises Failed as every wait."""
        if self.exit is None:
            self._wait(self.control.fileno(), select.POLLIN)
        if self.exit is None:
            self._report()
        assert self.exit is not None
        status, cpu_s = self.exit
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL and cpu_s > self.limits.cpu_s - 0.5:
            return "CPU time"
        return f"ended by signal {-code}" if code < 0 else f"exit status {code}" if code else ""

    def close(self) -> float:
        """Kill what still runs; nothing of the child is left after this. Returns its CPU seconds."""
        if self.exit is None:
            self.control.sendall(b"K")
        while self.exit is None:
            self._report()
        for fd in (self.requests, self.replies, self.output):
            os.close(fd)
        return self.exit[1]


@dataclass(frozen=True)
class Outcome:
    """Of one solution. tests: calls answered, or programs passed. Passing is said, never inferred."""

    passed: bool
    why: str
    tests: int


def functional(server: ForkServer, job: dict[str, Any], limits: Limits) -> Outcome:
    """Run `check(candidate)` of the tests."""
    names: dict[str, Any] = dict(_GIVEN)
    exec(compile(job["tests"], "tests", "exec"), names)
    request = {"source": job["source"], "entry": job["entry"], "stdin": None}
    child = Child(server, time.monotonic(), 0.0, limits)
    calls = 0

    def candidate(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        child.send(values.encode([arguments, keywords]))
        value = child.receive()
        calls += 1
        return value

    if job["entry"].isidentifier():
        names[job["entry"]] = candidate  # HumanEval's tests may call it by its name too
    try:
        child.send(values.encode(request))
        child.receive()
        names["check"](candidate)
    except Failed as error:
        return Outcome(False, str(error), calls)
    except CandidateError as error:
        return Outcome(False, f"raised {error}", calls)
    except AssertionError:
        return Outcome(False, "wrong answer", calls)
    except Exception as error:  # the tests stumble over what was returned
        return Outcome(False, f"wrong kind of answer: {type(error).__name__}", calls)
    finally:
        child.close()
    return Outcome(calls > 0, "passed" if calls else "the tests never called it", calls)


def programs(server: ForkServer, job: dict[str, Any], limits: Limits) -> Outcome:
    """Run the program once for each [input, expected output], all within the time of one solution."""
    began, spent_s = time.monotonic(), 0.0
    for passed, (given, expected) in enumerate(job["tests"]):
        child = Child(server, began, spent_s, limits)
        try:
            child.send(values.encode({"source": job["source"], "stdin": given}))
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
            return Outcome(False, "CPU time", passed)
        if output.decode(errors="surrogateescape").split() != expected.split():
            return Outcome(False, "wrong answer", passed)
    count = len(job["tests"])
    return Outcome(count > 0, "passed" if count else "no tests", count)


def main() -> None:
    """Arguments: full or weak, limits as JSON. Says {"ready": true} or {"ready": false, "why": ...}, then judges."""
    die_with_parent()  # the end of its input is noticed between two jobs only
    jobs, verdicts = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what tests print must not be taken for a verdict
    limits = Limits(**json.loads(sys.argv[2]))
    try:
        server = ForkServer(sys.argv[1], limits)
    except OSError as error:
        print(json.dumps({"ready": False, "why": error.strerror}), file=verdicts)
        return
    print(json.dumps({"ready": True}), file=verdicts)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in jobs:
        # For the tests and what they compare as much as for the solution: an answer can be built to compare slowly.
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + limits.cpu_s + 1, most))
        job = json.loads(line)
        began = time.perf_counter()
        outcome = (functional if "entry" in job else programs)(server, job, limits)
        print(json.dumps({**asdict(outcome), "seconds": time.perf_counter() - began}), file=verdicts)
