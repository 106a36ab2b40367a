"""End a process together with its parent. Imports only the standard library."""

import ctypes
import os
import signal

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
