"""What a process of the rewards may use: resource limits, and for solutions a list of allowed system calls.

Each child of the fork server (rewards/forkserver.py) calls `confine` before it runs a solution. The calls of the kernel
go through ctypes. Every call that fails raises OSError.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from rewards.process import die_with_parent

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SYS_CAPSET = 126
_NOBODY = 65534
MACHINE = "x86_64"  # the numbers of system calls are this machine's

# The reasons in verdicts on solutions that used too much CPU time, and on those that slept too long.
CPU_TIME, WALL_TIME = "CPU time", "wall time"
# A solution that has used less than this share of a core since its start counts as asleep. If it has used more, it is
# computing on a busy machine.
MIN_CPU_SHARE = 1 / 20
_OPEN_FILES = 64
# The fork server kills a child at its CPU limit. If that fails, the kernel kills it at this multiple of the limit. The
# kernel counts clock ticks, so it may count more than the child used.
_BACKSTOP = 4


@dataclass(frozen=True)
class Limits:
    """The resources that one solution may use: time, memory, output."""

    cpu_s: int = 4  # seconds of CPU time for all tests together
    wall_s: float = 10.0  # seconds by the clock after which a sleeping solution is ended
    memory_mb: int = 1024  # MiB of address space; the interpreter itself takes 150 of them
    output_kb: int = 4096  # KiB of standard output, or of one returned value

    @property
    def max_wall_s(self) -> float:
        """The longest time by the clock that a solution can take, in seconds, even if it computes slowly."""
        return max(self.wall_s, self.cpu_s / MIN_CPU_SHARE)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used, by the kernel's clock of its CPU time."""
    return time.clock_gettime(~pid << 3 | 2)


def address_space() -> int:
    """Return the size of this process's address space in bytes. `limit_memory` limits this size."""
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def limit_memory(size: int) -> None:
    """Limit this process's address space to `size` bytes. It leaves no core dump."""
    for limit, amount in ((resource.RLIMIT_AS, size), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (amount, amount))


def limit_cpu(further_s: int) -> None:
    """Have the kernel end this process by SIGXCPU when it has used this many seconds more. May be called again."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + further_s, hard_limit))


def _call(name: str, *arguments: object) -> None:
    """Call a libc function. Raises OSError unless it returns 0."""
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def confine(limits: Limits) -> None:
    """Give up all rights for good: to files, the network, other processes. A forked child calls this last, before it
    runs foreign code. Raises OSError."""
    os.setsid()
    os.chdir("/")
    limit_memory(limits.memory_mb << 20)
    for limit, amount in (
        (resource.RLIMIT_CPU, _BACKSTOP * limits.cpu_s),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_STACK, 64 << 20),
    ):
        resource.setrlimit(limit, (amount, amount))
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    header = struct.pack("Ii", 0x20080522, 0)  # capabilities, version 3, of this process
    _call("syscall", _SYS_CAPSET, header, bytes(24))
    die_with_parent()
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    code = b"".join(struct.pack("HBBI", *step) for step in _filter())
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    _call("prctl", _PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0)


# The system calls that Python needs to compute, and to use the descriptors that it has. Every other call fails with
# EPERM: a solution has no files, processes, threads, sockets, signals to other processes, mounts, shared memory, exec
# or ioctl.
_ALLOWED = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11,
    "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "readv": 19, "writev": 20,
    "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "pause": 34,
    "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39, "exit": 60, "wait4": 61, "uname": 63,
    "umask": 95, "gettimeofday": 96, "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104,
    "geteuid": 107, "getegid": 108, "getresuid": 118, "getresgid": 120, "sigaltstack": 131, "fstatfs": 138,
    "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "pselect6": 270, "ppoll": 271, "dup3": 292, "pipe2": 293,
    "getrandom": 318, "close_range": 436,
}  # fmt: skip
# Calls that are allowed with some values of one argument: the call's number, the argument's place, the values.
# fcntl duplicates descriptors, gets and sets flags of descriptors, and gets flags of files. F_SETOWN is forbidden,
# because it sends signals. So is F_SETFL: all children share one open /dev/null, whose flags could pass messages from
# one solution to the next. newfstatat is how libc asks for the state of a descriptor (AT_EMPTY_PATH), not of a file.
_ALLOWED_WITH = ((72, 1, (0, 1, 2, 3, 1030)), (262, 3, (0x1000,)))
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # 1: EPERM
_X86_64 = 0xC000003E


def _filter() -> list[tuple[int, int, int, int]]:
    """Make the filter as Berkeley packet filter instructions: (operation, jump if true, jump if false, operand).

    The instructions read struct seccomp_data: the call's number is at offset 0, the architecture at 4, the arguments
    from 16 on.
    """
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for number in _ALLOWED.values():
        steps += [(_EQUAL, 0, 1, number), allow]
    for number, place, values in _ALLOWED_WITH:
        steps += [(_EQUAL, 0, 2 * len(values) + 2, number), (_LOAD, 0, 0, 16 + 8 * place)]
        for value in values:
            steps += [(_EQUAL, 0, 1, value), allow]
        steps.append(refuse)
    return [*steps, refuse]
