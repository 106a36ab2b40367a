"""End a process together with its parent. Needs Linux; imports only the standard library."""

from __future__ import annotations

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def die_with_parent() -> None:
    """Have the kernel kill this process (SIGKILL) when its parent ends. Raises OSError where the kernel refuses.

    Call it early: if the parent has already ended, the kernel does nothing. For the kernel, the parent is the thread
    that forked this process, so that thread must live as long as this process is needed.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")
