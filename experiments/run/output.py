"""Send a process's output to a log file."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from das.general.side_output import lasting


@contextmanager
def quiet_into(path: Path) -> Iterator[TextIO]:
    """Send this process's output, that of C libraries included, to a log file. Yields a stream to the terminal. If
    there was no output, no file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = os.dup(1), os.dup(2)
    with path.open("a", buffering=1) as log, lasting(os.dup(1)) as terminal:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield terminal
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):  # on a full disk the log loses these lines
                    stream.flush()
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            os.close(saved[0])
            os.close(saved[1])
    if not path.stat().st_size:
        path.unlink()
