"""Fork server: a process with all imports that solutions need. It forks a confined child for each solution.

The judge (rewards/judge.py) forks it before it reads its first job, so it never sees tests, answers or solutions: those
reach a child through pipes. So the memory of a child holds no other solution and no expected value.

The judge sends orders over the control socket, each in one message. START comes with three descriptors (requests in,
replies out, standard output) and the CPU seconds that the child may use. ASK asks how many CPU seconds the child has
used. KILL kills the child. When a child has ended, the fork server sends its wait status and its CPU seconds.

The fork server itself kills a child that exceeds its CPU time. The kernel's own limit (RLIMIT_CPU) is imprecise: it
charges a whole clock tick to the process that runs at the tick. A solution that sleeps at every tick would be charged
almost nothing, and an honest one that happens to run at every tick would be charged too much.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from rewards import values
from rewards.limits import Limits, confine, cpu_seconds
from rewards.process import die_with_parent
from rewards.solution import answer_calls, read_frame, run_program

ORDER = struct.Struct("<cd")  # START, ASK or KILL; for START the CPU seconds that the child may use
START, ASK, KILL = b"R", b"T", b"K"
REPORT = struct.Struct("<id")  # wait status, CPU seconds
# In a report, in place of the wait status: the child has not ended; it ended, killed by nobody here, before it was
# confined, and so before it ran the solution.
RUNNING, UNCONFINED = -1, -2
BROKEN = 111  # exit status of a child that could not be confined; its traceback is in the log
_CHECK_S = 0.02  # shortest time between two checks of a child's CPU time


def forked(limits: Limits) -> socket.socket:
    """Fork a fork server, which ends when this process ends. Returns the control socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps message boundaries
    if os.fork():
        theirs.close()
        return ours
    try:
        ours.close()
        _serve(theirs, limits)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _serve(control: socket.socket, limits: Limits) -> None:
    """Body of the fork server: serve one judge, and end when the judge ends."""
    die_with_parent()
    Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, the kernel kills this, not the trainer
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)  # the judge's own, through which jobs and verdicts go
    gc.collect()
    gc.freeze()  # children then do not touch what is in memory already, and so do not copy it
    while True:
        message, fds, _, _ = socket.recv_fds(control, ORDER.size, 3)
        if not message:
            return
        order, max_cpu_s = ORDER.unpack(message)
        if order == START:  # other orders arrived after their child had ended and are ignored
            confined, says_so = os.pipe()
            pid = os.fork()
            if pid == 0:
                _child(limits, null, fds, says_so)
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
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(control, select.POLLIN)
    wait_s, killed = max_cpu_s, False
    while ended not in (ready := [fd for fd, _ in poll.poll(wait_s * 1000)]):
        cpu_s = cpu_seconds(pid)
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
            os.kill(pid, signal.SIGKILL)
            killed = True
        wait_s = max(_CHECK_S, max_cpu_s - cpu_s)
    cpu_s = cpu_seconds(pid)
    os.close(ended)
    _, status = os.waitpid(pid, 0)
    return status, cpu_s, killed


def _child(limits: Limits, null: int, fds: list[int], says_so: int) -> NoReturn:
    """Body of a child: read the job, close all other descriptors, give up all rights, and run the solution.

    fds: requests in, replies out, standard output. says_so: a pipe into which the child writes a byte once confined.
    """
    status = BROKEN
    try:
        requests, replies, output = fds
        wanted_fds = [null, output, 2, requests, replies, null, says_so]
        for target, fd in enumerate([os.dup2(fd, 200 + i) for i, fd in enumerate(wanted_fds)]):
            os.dup2(fd, target)
        os.closerange(len(wanted_fds), 256)
        job = values.decode(read_frame(3) or b"")
        if job["stdin"] is None:
            os.dup2(5, 1)
        else:
            _give_stdin(job["stdin"])
            os.closerange(3, 5)
        confine(limits)
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


def _give_stdin(text: str) -> None:
    """Make `text` this process's standard input."""
    fd = os.memfd_create("stdin")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)
