"""Make folders of policies and draft heads once, and keep them in the cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def cached_folder(final: Path, write: Callable[[Path], None]) -> Path:
    """Return `final`; if it is not there, let `write` fill a folder that gets this name when it is complete.

    So an interrupted `write` leaves nothing that looks complete. While another process makes a folder beside `final`,
    this function waits: making a policy takes all cores, and two at once take far longer than one after the other.
    """
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(final.parent / ".lock"):
        if final.is_dir():  # another process has made it meanwhile
            return final
        scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=final.parent))
        try:
            write(scratch)
            os.rename(scratch, final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return final
