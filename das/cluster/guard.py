"""guard.py FOLDER removes the processes and files that a trainer's own Ray leaves behind, however the trainer ended.

If a trainer is killed, even while Ray starts, some processes of Ray live on for a minute or more. The guard waits until
the other end of its standard input is closed. Then it kills all processes that write into the folder, and removes the
folder.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

DRIVERS_LOG = "python-core-driver-"  # the trainer's log file; processes that the trainer forked have it open, too
AGAIN_S = 0.1  # seconds between two looks for processes; later looks find processes that start late


def start_guard(folder: str) -> "subprocess.Popen[bytes]":
    """Start a guard of this folder. A signal to this process's group does not end the guard."""
    command = [sys.executable, "-P", __file__, folder]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def writers(prefix: str) -> list[int]:
    """Returns the ids of Ray's processes that have files open for writing whose paths begin with this prefix."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # the process has ended, or is another user's
            written = [Path(file.path) for file in process.open_files() if file.mode != "r"]
            own = [path for path in written if str(path).startswith(prefix)]
            if own and not any(path.name.startswith(DRIVERS_LOG) for path in own):
                found.append(process.pid)
    return found


def clean_up(folder: str) -> None:
    """Kill all processes of Ray that write into this folder, then remove the folder."""
    while alive := writers(f"{folder}/"):
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(AGAIN_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    clean_up(sys.argv[1])
