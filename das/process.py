"""Start processes with a pipe, and end processes together with their parent. Imports only the standard library."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

START = "spawn"  # or "fork", where this process has imported what the new ones need, and computed nothing

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def die_with_parent() -> None:
    """Have Linux kill this process by SIGKILL when its parent ends. Raises OSError if the kernel refuses.

    Call this function early: if the parent has already ended, the kernel does nothing. For the kernel, the parent is
    the thread that forked this process, so that thread must live as long as this process is needed.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")


def spawned(
    body: Callable[..., None], *args: Any, name: str | None = None, daemon: bool = True
) -> tuple[BaseProcess, Connection]:
    """Start a new Python process that calls body(*args, pipe). Returns the process and this end of the pipe.

    daemon: whether the new process is ended when this one ends.
    """
    context: Any = multiprocessing.get_context(START)
    ours, theirs = context.Pipe()
    process = context.Process(target=body, args=(*args, theirs), name=name, daemon=daemon)
    process.start()
    theirs.close()
    return process, ours
