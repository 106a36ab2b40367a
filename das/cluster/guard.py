"""Ends what a Ray of a trainer's own leaves when the trainer has ended, however it ended. A program: guard.py FOLDER.

Agents of Ray live on for a minute or more after a trainer that was killed. The guard reads lines "PID START", with the
kernel's start times of processes, until nobody has the other end of its standard input any more. Then it kills those
processes that still live, and removes the folder.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO


def start_guard(folder: str) -> "subprocess.Popen[str]":
    """Start a guard of this folder. It also survives a signal to this process's group."""
    command = [sys.executable, "-S", __file__, folder]
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)


def hand_over(guard: "subprocess.Popen[str]", processes: Iterable[int]) -> None:
    """Let a guard end these processes."""
    assert guard.stdin is not None
    for pid in processes:
        guard.stdin.write(f"{pid} {started(pid)}\n")
    guard.stdin.flush()


def descendants(of: int) -> set[int]:
    """Processes that this process has started, and those that these have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(entry.parent.name)] = int(entry.read_text().rsplit(")", 1)[1].split()[1])
    found, last = set(), {of}
    while last:
        last = {pid for pid, parent in parents.items() if parent in last}
        found |= last
    return found


def started(pid: int) -> int:
    """When a process started, in the kernel's ticks; -1 if there is none. It tells processes of equal ids apart."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return -1


def guard(folder: str, lines: IO[str]) -> None:
    """Wait until `lines` end, then clean up."""
    handed = [(int(pid), int(start)) for pid, start in map(str.split, lines)]
    for pid, start in handed:
        if started(pid) == start:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    guard(sys.argv[1], sys.stdin)
