"""A child that asked for it ends with its parent."""

import os
import subprocess
import sys

from scripts import ROOT, ends

CHILD = """
import time
from rewards.process import die_with_parent
die_with_parent()
print('ready', flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
process.stdout.readline()
print(process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_the_child_ends_with_its_parent() -> None:
    # Seen to fail without the call of prctl. A child with this process's stderr would be waited for.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, env=environment, check=False
    )
    assert ends(int(parent.stdout)), "the child outlived its parent"
