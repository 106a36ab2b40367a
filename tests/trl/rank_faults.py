"""run.py with a fault on one rank that writes its part of a checkpoint. Usage: rank_faults.py FAULT STEP ARGUMENT...

kill   SIGKILL for rank 1, long after the main rank has written its part     full   the disk is full for rank 1
"""

import errno
import os
import runpy
import signal
import sys
import time
from pathlib import Path

from das.general import ranks
from experiments.run import run_folder

AFTER_S = 2  # seconds in which the main rank could do harm
own_folder = run_folder.own_folder


def struck(folder: Path) -> Path:
    """run_folder.own_folder, which says where a rank is to write."""
    if ranks.rank() == 1 and folder.name == f"checkpoint-{step}":
        if fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        time.sleep(AFTER_S)
        os.kill(os.getpid(), signal.SIGKILL)
    return own_folder(folder)


if __name__ == "__main__":
    fault, step, *arguments = sys.argv[1:]
    run_folder.own_folder = struck
    sys.argv = ["run.py", *arguments]
    runpy.run_path("run.py", run_name="__main__")
