"""Ends what a Ray of a trainer's own leaves when the trainer has ended, however it ended. A program: guard.py FOLDER.

Agents of Ray live on for a minute or more after a trainer that was killed, also one that was killed while Ray started.
The guard waits until nobody has the other end of its standard input any more. Then it kills Ray's processes, which are
those that write into the folder, and removes the folder.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

WRITES = os.O_WRONLY | os.O_RDWR
DRIVERS_LOG = "python-core-driver-"  # a log that the trainer writes, and whatever it forked inherits
AGAIN_S = 0.1  # until the guard looks again for processes that were being started


def start_guard(folder: str) -> "subprocess.Popen[bytes]":
    """Start a guard of this folder. It also survives a signal to this process's group."""
    command = [sys.executable, "-S", __file__, folder]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def writers(prefix: str) -> list[int]:
    """Ids of Ray's processes that have files open for writing whose paths begin like this."""
    found = []
    for files in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # the process has ended, or is another user's
            written = [path for path in map(_written, files.iterdir()) if path.startswith(prefix)]
            if written and not any(Path(path).name.startswith(DRIVERS_LOG) for path in written):
                found.append(int(files.parent.name))
    return found


def _written(descriptor: Path) -> str:
    """The path of an open file; empty if it is open for reading only, or closed meanwhile."""
    with suppress(FileNotFoundError):
        information = (descriptor.parents[1] / "fdinfo" / descriptor.name).read_text()
        flags = int(information.split("flags:")[1].split()[0], 8)
        return os.readlink(descriptor) if flags & WRITES else ""
    return ""


def clean_up(folder: str) -> None:
    """Kill the Ray of this folder, and remove it."""
    while alive := writers(f"{folder}/"):
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(AGAIN_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    clean_up(sys.argv[1])
