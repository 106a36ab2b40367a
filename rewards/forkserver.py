"""Fork server: a jailed process with all imports that solutions need. It forks a confined child for each solution.

The fork server never sees tests, answers or solutions: they reach the child through pipes that the judge
(rewards/judge.py) made. So the memory of a child holds no other solution and no expected value.

The judge sends orders over the control socket, each in one message. START comes with three descriptors (requests in,
replies out, standard output) and the CPU seconds that the child may use. ASK asks how many CPU seconds the child has
used. KILL kills the child. When a child has ended, the fork server sends its wait status and its CPU seconds.

The fork server itself kills a child that exceeds its CPU time. The kernel's own limit (RLIMIT_CPU) is imprecise: it
charges a whole clock tick to the process that runs at the tick. A solution that sleeps at every tick would be charged
almost nothing, and an honest one that happens to run at every tick would be charged too much.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from das.process import die_with_parent
from rewards import isolation, values
from rewards.isolation import Limits
from rewards.solution import answer_calls, read_frame, run_program

ORDER = struct.Struct("<cd")  # START, ASK or KILL; for START the CPU seconds that the child may use
START, ASK, KILL = b"R", b"T", b"K"
REPORT = struct.Struct("<id")  # wait status, CPU seconds
# In a report, in place of the wait status: the child has not ended; it ended, killed by nobody here, before it was
# confined, and so before it ran the solution.
RUNNING, UNCONFINED = -1, -2
BROKEN = 111  # exit status of a child that could not be confined; its traceback is in the log
_CHECK_S = 0.02  # shortest time between two checks of a child's CPU time


def main() -> None:
    """Body of the fork server's process: serve one judge, and end when the judge ends.

    Command-line arguments: the descriptor of the control socket, full or weak (isolation), the jail's folder, limits as
    JSON.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    jailed, root, limits = sys.argv[2] == "full", sys.argv[3], Limits(**json.loads(sys.argv[4]))
    sys.argv = [""]
    die_with_parent()
    Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, the kernel kills this, not the trainer
    null = os.open(os.devnull, os.O_RDWR)
    try:
        forker = _Jailed(control, root, null, limits) if jailed else _Forker(null, limits)
    except OSError as error:
        control.sendall(f"E{error.strerror}".encode())
        return
    gc.collect()
    gc.freeze()  # children then do not touch what is in memory already, and so do not copy it
    control.sendall(b"S")
    while True:
        message, fds, _, _ = socket.recv_fds(control, ORDER.size, 3)
        if not message:
            return
        order, max_cpu_s = ORDER.unpack(message)
        if order == START:  # other orders arrived after their child had ended and are ignored
            confined, says_so = os.pipe()
            pid = forker.fork([*fds, says_so])
            for fd in (*fds, says_so):
                os.close(fd)
            status, cpu_s, killed = _wait(control, pid, max_cpu_s)
            if not (killed or os.read(confined, 1)):
                status = UNCONFINED
            os.close(confined)
            with suppress(BrokenPipeError):  # the judge has ended; the next read notices that
                control.sendall(REPORT.pack(status, cpu_s))


def _wait(control: socket.socket, pid: int, max_cpu_s: float) -> tuple[int, float, bool]:
    """Wait until a child ends, and obey the judge meanwhile. Returns the child's wait status and CPU seconds, and
    whether it was killed here.

    A child is killed when it has used max_cpu_s. It has a single thread, so it cannot use its remaining CPU seconds in
    less time by the clock. So no check is needed before that time.
    """
    cpu_clock = ~pid << 3 | 2  # id of the clock of the child's CPU time, by the kernel's rule
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(control, select.POLLIN)
    wait_s, killed = max_cpu_s, False
    while ended not in (ready := [fd for fd, _ in poll.poll(wait_s * 1000)]):
        cpu_s = time.clock_gettime(cpu_clock)
        order = None
        if ready:
            message = control.recv(ORDER.size)
            if not message:  # the judge has ended
                os.kill(pid, signal.SIGKILL)
                os._exit(0)
            order, _ = ORDER.unpack(message)
        if order == ASK:
            control.sendall(REPORT.pack(RUNNING, cpu_s))
        if order == KILL or cpu_s >= max_cpu_s:
            os.kill(pid, signal.SIGKILL)  # in a jail it is process 1 of its namespace, so all its processes end
            killed = True
        wait_s = max(_CHECK_S, max_cpu_s - cpu_s)
    cpu_s = time.clock_gettime(cpu_clock)
    os.close(ended)
    _, status = os.waitpid(pid, 0)
    return status, cpu_s, killed


class _Forker:
    """Forks confined children that have no namespaces (isolation=weak)."""

    jailed = False
    in_tmp: Sequence[str] = ()  # what isolation.enter_jail returned

    def __init__(self, null: int, limits: Limits):
        self.null, self.limits = null, limits
        self.nobody = os.getuid() == 0

    def fork(self, fds: list[int]) -> int:
        """Start a child. fds: requests in, replies out, standard output, and a pipe into which the child writes a byte
        once it is confined. Returns its process id."""
        pid = os.fork()
        if pid == 0:
            self._child(fds)
        return pid

    def _child(self, fds: list[int]) -> NoReturn:
        """Body of a child: read the job, close all other descriptors, give up all rights, and run the solution."""
        status = BROKEN
        try:
            requests, replies, output, says_so = fds
            wanted_fds = [self.null, output, 2, requests, replies, self.null, says_so]
            for target, fd in enumerate([os.dup2(fd, 200 + i) for i, fd in enumerate(wanted_fds)]):
                os.dup2(fd, target)
            os.closerange(len(wanted_fds), 256)
            job = values.decode(read_frame(3) or b"")
            if job["stdin"] is None:
                os.dup2(5, 1)
            else:
                _give_stdin(job["stdin"])
                os.closerange(3, 5)
            isolation.confine(self.limits, self.jailed, self.nobody, self.in_tmp)
            os.dup2(5, 2)  # errors until here are our own and go to the log; the solution's do not
            os.write(6, b"c")
            os.closerange(5, 7)
            status = 1
            if job["stdin"] is None:
                answer_calls(job["source"], job["entry"], 3, 4)
            else:
                run_program(job["source"])
            status = 0
        except SystemExit as request:
            status = request.code if isinstance(request.code, int) else int(request.code is not None)
        except BaseException:
            if status == BROKEN:
                traceback.print_exc()
        finally:
            os._exit(status & 0xFF)


class _Jailed(_Forker):
    """Forks children in a jail (isolation=full). It is process 1 of its PID namespace; each child is process 1 of a new
    one."""

    jailed = True

    def __init__(self, control: socket.socket, root: str, null: int, limits: Limits):
        super().__init__(null, limits)
        isolation.unshare(isolation.NEWUSER)
        control.sendall(b"U")
        if control.recv(1) != b"M":
            raise OSError(0, "the judge could not map user ids")
        self.nobody = len(Path("/proc/self/uid_map").read_text().splitlines()) == 2
        isolation.unshare(isolation.NEWNS | isolation.NEWNET | isolation.NEWIPC | isolation.NEWUTS | isolation.NEWPID)
        inner = os.fork()
        if inner:
            _, status = os.waitpid(inner, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        die_with_parent()
        self.namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self.in_tmp = isolation.enter_jail(root)

    def fork(self, fds: list[int]) -> int:
        """See _Forker. The child gets its own PID namespace."""
        isolation.unshare(isolation.NEWPID)
        pid = super().fork(fds)
        isolation.rejoin_pid_namespace(self.namespace)
        return pid


def _give_stdin(text: str) -> None:
    """Make `text` this process's standard input."""
    fd = os.memfd_create("stdin")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)
