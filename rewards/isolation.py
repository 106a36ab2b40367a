"""What Linux puts around a solution: namespaces, resource limits, a list of allowed system calls.

Used by the fork server (rewards/forkserver.py): `enter_jail` once for itself, `confine` in every child it forks. Both
call the kernel through ctypes; every call that fails raises OSError.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from das.process import die_with_parent

LIBC = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
)  # fmt: skip
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SYS_PIVOT_ROOT, _SYS_MOUNT_SETATTR, _SYS_CAPSET = 155, 442, 126  # x86_64, as everything below
NOBODY = 65534


WALL_TIME = "wall time"  # why a solution failed that was ended by the clock
# A solution that had less of a core than this over its whole time is taken to sleep; with more it computes, on a busy
# machine.
LEAST_SHARE = 1 / 20


@dataclass(frozen=True)
class Limits:
    """What one solution may use."""

    cpu_s: int = 4  # seconds of CPU time, all tests together
    wall_s: float = 10.0  # seconds by the clock, then a solution that sleeps is ended
    memory_mb: int = 1024  # MiB of address space, the interpreter's own 150 included
    file_mb: int = 16  # MiB in its temporary directory, all files together
    output_kb: int = 4096  # KiB of standard output, or of one returned value
    open_files: int = 64

    @property
    def longest_s(self) -> float:
        """Seconds by the clock that no solution exceeds, however little it computes."""
        return max(self.wall_s, self.cpu_s / LEAST_SHARE)


def _call(name: str, *arguments: object) -> None:
    """Call a libc function that returns 0, or raise OSError."""
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _system_call(name: str, number: int, *arguments: object) -> None:
    if LIBC.syscall(number, *arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones. Raises OSError."""
    _call("unshare", flags)


def rejoin_pid_namespace(fd: int) -> None:
    """Let children be born into the namespace behind `fd` again. Raises OSError."""
    _call("setns", fd, NEWPID)


def map_ids(pid: int) -> None:
    """Give the new user namespace of process `pid` its ids; called by its parent. Raises OSError.

    Root inside is this user outside. A real root adds nobody, which the solutions then run as.
    """
    proc = Path(f"/proc/{pid}")
    nobody = f"{NOBODY} {NOBODY} 1\n" if os.getuid() == 0 else ""
    if not nobody:
        (proc / "setgroups").write_text("deny")
    (proc / "uid_map").write_text(f"0 {os.getuid()} 1\n{nobody}")
    (proc / "gid_map").write_text(f"0 {os.getgid()} 1\n{nobody}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call("mount", source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), options.encode())


def enter_jail(root: str) -> None:
    """Make a file system of read-only libraries and an empty /tmp the only one there is; `root` is an empty folder.

    Needs new user and mount namespaces. No /proc, /dev, /etc, /home, nor the project. Raises OSError.
    """
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("jail", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    for library in sorted(libraries | {"/lib", "/lib64", "/usr/lib"}):
        if os.path.isdir(library):
            target = root + library
            os.makedirs(target, exist_ok=True)
            _mount(library, target, None, _MS_BIND | _MS_REC)
    os.makedirs(f"{root}/tmp", exist_ok=True)  # it is there if the libraries lie in /tmp; solutions do not see those
    os.chdir(root)
    _system_call("pivot_root", _SYS_PIVOT_ROOT, b".", b".")
    _call("umount2", b".", _MNT_DETACH)
    os.chdir("/")
    read_only = struct.pack("QQQQ", 1 | 2 | 4, 0, 0, 0)  # attributes to set: RDONLY, NOSUID, NODEV
    _system_call("mount_setattr", _SYS_MOUNT_SETATTR, -1, b"/", 0x8000, read_only, len(read_only))  # AT_RECURSIVE


def confine(limits: Limits, jailed: bool, nobody: bool) -> None:
    """Last step of a forked child before it runs foreign code; there is no way back. Raises OSError.

    jailed: it was born into a new PID namespace of the jail, and gets a temporary directory of its own. Otherwise it
    can open no file at all. nobody: change to that user.
    """
    if jailed:
        unshare(NEWNS)
        options = f"mode=777,size={limits.file_mb}m,nr_inodes=1000"
        _mount("tmp", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, options)
        os.chdir("/tmp")
    else:
        os.setsid()
        os.chdir("/")
    for what, amount in (
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_AS, limits.memory_mb << 20),
        (resource.RLIMIT_FSIZE, limits.file_mb << 20),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, 64 << 20),
    ):
        resource.setrlimit(what, (amount, amount))
    if nobody:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    header = struct.pack("Ii", 0x20080522, 0)  # capabilities, version 3, of this process
    _system_call("capset", _SYS_CAPSET, header, bytes(24))
    die_with_parent()
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _filter_system_calls(files=jailed)


# What Python needs to compute, and in a jail to use files: names and x86_64 numbers. All else fails with EPERM: no
# processes or threads, sockets, signals to others, mounts, shared memory, exec, ioctl.
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
    "renameat": 264, "utimensat": 280, "renameat2": 316,
}  # fmt: skip
_FCNTL, _FCNTL_COMMANDS = 72, (0, 1, 2, 3, 4, 1030)  # duplicate, get and set flags: not F_SETOWN, which sends signals
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # 1: EPERM
_X86_64 = 0xC000003E


def _program(files: bool) -> list[tuple[int, int, int, int]]:
    """Berkeley packet filter over struct seccomp_data: number at 0, architecture at 4, arguments from 16."""
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for number in (*_COMPUTE.values(), *(_FILES.values() if files else ())):
        program += [(_EQUAL, 0, 1, number), allow]
    program += [(_EQUAL, 1, 0, _FCNTL), refuse, (_LOAD, 0, 0, 16 + 8)]
    for command in _FCNTL_COMMANDS:
        program += [(_EQUAL, 0, 1, command), allow]
    return [*program, refuse]


def _filter_system_calls(files: bool) -> None:
    if platform.machine() != "x86_64":
        raise OSError(0, f"the list of allowed system calls is for x86_64, not {platform.machine()}")
    code = b"".join(struct.pack("HBBI", *step) for step in _program(files))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    _call("prctl", _PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0)
