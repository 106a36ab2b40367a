"""A run that meets a full disk, is resumed, killed and resumed again equals, bit for bit, a run without trouble.

nightly/strikes.py tries more ways to die, with two arms in lock step and the default policy.
"""

import ctypes
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from equal_runs import differing_files, timeless
from runs import SETTINGS, STEPS, outcome
from scripts import as_script, output_into, run_script

from analysis import read

pytestmark = pytest.mark.slow

DISK_KB = 2900  # room for two checkpoints
OWN_MOUNTS = 0x10000000 | 0x00020000  # CLONE_NEWUSER and CLONE_NEWNS of <linux/sched.h>


def started(errors: Path, *words: str) -> Any:
    """A process that does what run.py does with these arguments."""
    with errors.open("w") as file, output_into(file, file):
        process = multiprocessing.get_context("fork").Process(target=as_script, args=(["run.py", *words],))
        process.start()
    return process


def in_trouble(*arguments: Any) -> None:
    """Call run_with_trouble in a fork, which has one thread: Linux gives own mounts to no process with more."""
    process = multiprocessing.get_context("fork").Process(target=run_with_trouble, args=arguments)
    process.start()
    process.join()
    sys.exit(process.exitcode)


def run_with_trouble(policy: str, folder: Path, left: Path) -> None:
    """Run on a small disk, then on a larger one, and copy what it left to `left`. This process gets its own mounts."""
    own, libc = (os.getuid(), os.getgid()), ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(OWN_MOUNTS) == 0, os.strerror(ctypes.get_errno())
    Path("/proc/self/setgroups").write_text("deny")
    for name, number in zip(("uid_map", "gid_map"), own, strict=True):
        Path(f"/proc/self/{name}").write_text(f"0 {number} 1")
    mount = ["mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, f"size={DISK_KB}k", "tmpfs", str(folder)], check=True)
    run, printed = folder / "run", left.with_name("printed")
    full = started(printed, "task=train", "arm=das", *SETTINGS, f"policy.path={policy}", f"hydra.run.dir={run}")
    full.join()
    line = printed.read_text().strip().splitlines()[-1]
    assert full.exitcode == 1, line
    assert "disk full" in line, line
    assert f"python run.py resume={run}" in line, line
    finished_steps = len(read.metrics(run))
    assert 2 <= finished_steps < STEPS
    subprocess.run([*mount, "remount,size=64m", "tmpfs", str(folder)], check=True)
    killed = started(printed, f"resume={run}")
    kill_after = random.randrange(finished_steps, STEPS - 1)
    while killed.exitcode is None and len(read.metrics(run)) < kill_after:
        time.sleep(0.001)
    time.sleep(0.1 * random.random())
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    last = started(printed, f"resume={run}")
    last.join()
    assert last.exitcode == 0, printed.read_text()
    assert "step   1/" not in printed.read_text(), "it started anew"
    shutil.copytree(run, left)


def test_full_disk_and_kill_leave_no_trace(
    runs: Callable[[str], Path], policies: Callable[[str], str], tmp_path: Path
) -> None:
    if os.system("unshare -rm true 2>/dev/null"):
        pytest.skip("this machine lets no user mount a small disk (unshare -rm)")
    undisturbed, other, disk = runs("das"), tmp_path / "other", tmp_path / "disk"
    disk.mkdir()
    arguments = f"{policies('repetitive')!r}, Path({str(disk)!r}), Path({str(other)!r})"
    run_script("-c", f"from test_survival import *; in_trouble({arguments})")
    assert outcome(other) == outcome(undisturbed)
    assert timeless(read.metrics(undisturbed)) == timeless(read.metrics(other))
    assert [row["step"] for row in read.metrics(other)] == list(range(1, STEPS + 1))
    assert list(differing_files(undisturbed, other)) == []
