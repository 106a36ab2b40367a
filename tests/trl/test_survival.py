"""A run that meets a full disk, is resumed, killed and resumed again equals, bit for bit, a run without trouble.

task=kill_test tries more ways to die, with two arms in lock step and the default policy.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripts import ROOT, SIZES

from analysis import read
from experiments.tasks.kill_test import differing_files, timeless

pytestmark = pytest.mark.slow

STEPS = 8
RUN = [
    *SIZES, "task=train", "arm=das", "wandb=off", "budget=fixed", "budget.tokens=8", "data.problems=6",
    f"trainer.max_steps={STEPS}", "trainer.learning_rate=0.01", "checkpoint.every=2",
]  # fmt: skip
DISK_KB = 2900  # room for two checkpoints; the third is written before the first is deleted


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def run_with_trouble(policy: str, folder: Path, outcome: Path) -> None:
    """Run on a small disk, then on a larger one, and copy what it left to `outcome`. Needs its own mount namespace."""
    mount = ["mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, f"size={DISK_KB}k", "tmpfs", str(folder)], check=True)
    run = folder / "run"
    full = start(*RUN, f"policy.path={policy}", f"hydra.run.dir={run}")
    _, errors = full.communicate()
    assert full.returncode == 1, errors
    (line,) = errors.strip().splitlines()
    assert "disk full" in line, line
    assert f"python run.py resume={run}" in line, line
    finished_steps = len(read.metrics(run))
    assert 2 <= finished_steps < STEPS
    subprocess.run([*mount, "remount,size=64m", "tmpfs", str(folder)], check=True)
    killed = start(f"resume={run}")
    kill_after = random.randrange(finished_steps, STEPS)
    while killed.poll() is None and len(read.metrics(run)) < kill_after:
        time.sleep(0.001)
    time.sleep(random.random())
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    last = start(f"resume={run}")
    output, errors = last.communicate()
    assert last.returncode == 0, errors
    assert "resuming after step" in output
    shutil.copytree(run, outcome)


def test_full_disk_and_kill_leave_no_trace(tiny_policy: str, tmp_path: Path) -> None:
    if os.system("unshare -rm true 2>/dev/null"):
        pytest.skip("this machine lets no user mount a small disk (unshare -rm)")
    undisturbed = tmp_path / "undisturbed"
    run = start(*RUN, f"policy.path={tiny_policy}", f"hydra.run.dir={undisturbed}")
    _, errors = run.communicate()
    assert run.returncode == 0, errors
    (tmp_path / "disk").mkdir()
    arguments = f"{tiny_policy!r}, Path({str(tmp_path / 'disk')!r}), Path({str(tmp_path / 'other')!r})"
    command = f"from tests.trl.test_survival import *; run_with_trouble({arguments})"
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    troubled = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert troubled.returncode == 0, troubled.stdout + troubled.stderr
    assert timeless(read.metrics(undisturbed)) == timeless(read.metrics(tmp_path / "other"))
    assert [row["step"] for row in read.metrics(undisturbed)] == list(range(1, STEPS + 1))
    assert list(differing_files(undisturbed, tmp_path / "other")) == []
