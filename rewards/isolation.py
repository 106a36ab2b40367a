"""Confine a solution by means of Linux: namespaces, resource limits, and a list of allowed system calls.

The fork server (rewards/forkserver.py) calls `enter_jail` once for itself, and `confine` in every child that it forks.
Both call the kernel through ctypes. Every call that fails raises OSError.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import site
import struct
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from das.process import die_with_parent

_LIBC = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
)  # fmt: skip
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SYS_PIVOT_ROOT, _SYS_MOUNT_SETATTR, _SYS_CAPSET = 155, 442, 126  # of x86_64, like all numbers below
NOBODY = 65534

# The reasons in verdicts on solutions that used too much CPU time, and on those that slept too long.
CPU_TIME, WALL_TIME = "CPU time", "wall time"
# A solution that has used less than this share of a core since its start counts as asleep. If it has used more, it is
# computing on a busy machine.
MIN_CPU_SHARE = 1 / 20


@dataclass(frozen=True)
class Limits:
    """The resources that one solution may use: time, memory, files, output."""

    cpu_s: int = 4  # seconds of CPU time for all tests together
    wall_s: float = 10.0  # seconds by the clock after which a sleeping solution is ended
    memory_mb: int = 1024  # MiB of address space; the interpreter itself takes 150 of them
    file_mb: int = 16  # MiB for all files of its temporary directory together
    output_kb: int = 4096  # KiB of standard output, or of one returned value
    open_files: int = 64

    @property
    def max_wall_s(self) -> float:
        """The longest time by the clock that a solution can take, in seconds, even if it computes slowly."""
        return max(self.wall_s, self.cpu_s / MIN_CPU_SHARE)


def _call(name: str, *arguments: object) -> None:
    """Call a libc function. Raises OSError unless it returns 0."""
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _system_call(name: str, number: int, *arguments: object) -> None:
    """Make the system call of this number. Raises OSError unless it returns 0."""
    if _LIBC.syscall(number, *arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` names and enter new ones. Raises OSError."""
    _call("unshare", flags)


def rejoin_pid_namespace(fd: int) -> None:
    """Make future children start in the PID namespace to which `fd` refers. Raises OSError."""
    _call("setns", fd, NEWPID)


def map_ids(pid: int) -> None:
    """Map user and group ids into the new user namespace of the child process `pid`. Raises OSError.

    Root inside the namespace is this process's user outside. If that user is the real root, the user nobody is mapped
    too, and solutions then run as nobody.
    """
    proc = Path(f"/proc/{pid}")
    nobody = f"{NOBODY} {NOBODY} 1\n" if os.getuid() == 0 else ""
    if not nobody:
        (proc / "setgroups").write_text("deny")
    (proc / "uid_map").write_text(f"0 {os.getuid()} 1\n{nobody}")
    (proc / "gid_map").write_text(f"0 {os.getgid()} 1\n{nobody}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call("mount", source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), options.encode())


_TMP = "/tmp"
_ASIDE = "/libraries_of_tmp"  # in the jail: where libraries lie whose own place is below _TMP


def _libraries() -> list[str]:
    """Return the folders of libraries that Python and its modules need, parents first.

    A virtual environment may see the packages of the Python that it was made from. Those packages are found by the
    search path, which may hold folders of the user's own projects too. These are left out.
    """
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    libraries |= set(site.getsitepackages([sys.prefix, sys.base_prefix])) & set(sys.path)
    return [library for library in sorted(libraries | {"/lib", "/lib64", "/usr/lib"}) if os.path.isdir(library)]


def _bind(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    _mount(source, target, None, _MS_BIND | _MS_REC)


def _is_in_tmp(library: str) -> bool:
    return library.startswith(f"{_TMP}/")


def enter_jail(root: str) -> list[str]:
    """Replace the file system by one that holds only read-only libraries and an empty /tmp. Raises OSError.

    root: an empty folder, on which the new file system is built. The process must already be in a new user namespace
    and a new mount namespace. Afterwards it has no /proc, /dev, /etc or /home, and no access to the project. Returns
    the libraries that lie below /tmp. `confine` needs them, because it gives each child another /tmp.
    """
    libraries = _libraries()
    in_tmp = [library for library in libraries if _is_in_tmp(library)]
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("jail", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    for library in libraries:
        _bind(library, root + library)
    for library in in_tmp:
        _bind(library, root + _ASIDE + library)
    os.makedirs(root + _TMP, exist_ok=True)
    os.chdir(root)
    _system_call("pivot_root", _SYS_PIVOT_ROOT, b".", b".")
    _call("umount2", b".", _MNT_DETACH)
    os.chdir("/")
    read_only = struct.pack("QQQQ", 1 | 2 | 4, 0, 0, 0)  # sets RDONLY, NOSUID and NODEV
    _system_call("mount_setattr", _SYS_MOUNT_SETATTR, -1, b"/", 0x8000, read_only, len(read_only))  # AT_RECURSIVE
    return in_tmp


# The fork server kills a child at its CPU limit (rewards/forkserver.py). If that fails, the kernel kills it at this
# multiple of the limit. The kernel counts clock ticks, so it may count more than the child used.
_BACKSTOP = 4


def confine(limits: Limits, jailed: bool, nobody: bool, in_tmp: Sequence[str] = ()) -> None:
    """Give up all rights for good. A forked child calls this last, before it runs foreign code. Raises OSError.

    jailed: whether the child is in the jail, in its own PID namespace. If so, it gets its own temporary directory; if
    not, it cannot open any file. nobody: whether to change to the user nobody. in_tmp: what enter_jail returned.
    """
    if jailed:
        unshare(NEWNS)
        options = f"mode=777,size={limits.file_mb}m,nr_inodes=1000"
        _mount("tmp", _TMP, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
        for library in in_tmp:
            _bind(_ASIDE + library, library)  # read-only, as _ASIDE is
        os.chdir(_TMP)
    else:
        os.setsid()
        os.chdir("/")
    for limit, amount in (
        (resource.RLIMIT_CPU, _BACKSTOP * limits.cpu_s),
        (resource.RLIMIT_AS, limits.memory_mb << 20),
        (resource.RLIMIT_FSIZE, limits.file_mb << 20),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, 64 << 20),
    ):
        resource.setrlimit(limit, (amount, amount))
    if nobody:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    header = struct.pack("Ii", 0x20080522, 0)  # capabilities, version 3, of this process
    _system_call("capset", _SYS_CAPSET, header, bytes(24))
    die_with_parent()
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _filter_system_calls(files=jailed)


# The system calls that Python needs to compute, and those that it needs to use files in a jail, with their x86_64
# numbers. Every other call fails with EPERM: a solution has no processes or threads, sockets, signals to other
# processes, mounts, shared memory, exec or ioctl.
_COMPUTE = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "pread64": 17, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25,
    "madvise": 28, "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38,
    "getpid": 39, "exit": 60, "wait4": 61, "uname": 63, "getcwd": 79, "chdir": 80, "readlink": 89, "umask": 95,
    "gettimeofday": 96, "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
    "getegid": 108, "getppid": 110, "getresuid": 118, "getresgid": 120, "sigaltstack": 131, "statfs": 137,
    "fstatfs": 138, "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204, "getdents64": 217,
    "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262,
    "readlinkat": 267, "faccessat": 269, "pselect6": 270, "ppoll": 271, "dup3": 292, "pipe2": 293, "getrandom": 318,
    "statx": 332, "close_range": 436, "faccessat2": 439,
}  # fmt: skip
_FILES = {
    "open": 2, "openat": 257, "pwrite64": 18, "fsync": 74, "fdatasync": 75, "truncate": 76, "ftruncate": 77,
    "rename": 82, "mkdir": 83, "rmdir": 84, "unlink": 87, "chmod": 90, "mkdirat": 258, "unlinkat": 263,
    "renameat": 264, "renameat2": 316,
}  # fmt: skip
# The allowed commands of fcntl duplicate descriptors, get and set flags of descriptors, and get flags of files.
# F_SETOWN is forbidden, because it sends signals. So are F_SETFL and, above, utimensat: all children share one open
# /dev/null, whose flags and times could pass messages from one solution to the next.
_FCNTL, _FCNTL_COMMANDS = 72, (0, 1, 2, 3, 1030)
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # 1: EPERM
_X86_64 = 0xC000003E


def _program(files: bool) -> list[tuple[int, int, int, int]]:
    """Make the filter as Berkeley packet filter instructions: (operation, jump if true, jump if false, operand).

    files: see _filter_system_calls. The instructions read struct seccomp_data: the call's number is at offset 0, the
    architecture at 4, the arguments from 16 on.
    """
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for number in (*_COMPUTE.values(), *(_FILES.values() if files else ())):
        program += [(_EQUAL, 0, 1, number), allow]
    program += [(_EQUAL, 1, 0, _FCNTL), refuse, (_LOAD, 0, 0, 16 + 8)]
    for command in _FCNTL_COMMANDS:
        program += [(_EQUAL, 0, 1, command), allow]
    return [*program, refuse]


def _filter_system_calls(files: bool) -> None:
    """Install the filter of system calls in this process. files: whether to allow the calls that use files. Raises
    OSError."""
    if platform.machine() != "x86_64":
        raise OSError(0, f"the list of allowed system calls is for x86_64, not {platform.machine()}")
    code = b"".join(struct.pack("HBBI", *step) for step in _program(files))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    _call("prctl", _PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0)
