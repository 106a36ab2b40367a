"""Folders that are made once and kept in the cache: policies, heads."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cached_folder(final: Path, write: Callable[[Path], None]) -> Path:
    """Return `final`; if it is not there, let `write` fill a folder that gets this name when it is complete.

    So an interrupted `write` leaves nothing that looks complete. When two processes make the same folder, the first
    one's is kept; both must have the same content.
    """
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=final.parent))
    try:
        write(scratch)
        try:
            os.rename(scratch, final)
        except OSError:
            if not final.is_dir():  # if it is there, another process was quicker
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final
