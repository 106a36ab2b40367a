"""Make folders of policies and draft heads once, and keep them in the cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cached_folder(final: Path, write: Callable[[Path], None]) -> Path:
    """Return `final`; if it is not there, let `write` fill a folder that gets this name when it is complete.

    So an interrupted `write` leaves nothing that looks complete. While another process makes a folder beside `final`,
    this function waits: making a policy takes all cores, and two at once take far longer than one after the other.
    """
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(final.parent):
        if final.is_dir():  # another process has made it meanwhile
            return final
        scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=final.parent))
        try:
            write(scratch)
            os.rename(scratch, final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return final


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder inside the `with` block: other processes wait here. A process that ends releases its lock."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
