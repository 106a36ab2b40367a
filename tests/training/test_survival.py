"""A run that meets a full disk, is resumed, killed and resumed again ends bit for bit like an undisturbed run.

task=kill_test kills in more ways, with two arms in lock step and the default policy.
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

from analysis import read
from experiments.tasks.kill_test import differing_files, timeless

ROOT = Path(__file__).resolve().parents[2]
STEPS = 10
RUN = [
    "task=train", "arm=das", "reward=brevity", "wandb=off", "budget=fixed", "budget.tokens=8", "data.problems=6",
    f"trainer.max_steps={STEPS}", "trainer.per_device_train_batch_size=8", "trainer.num_generations=4",
    "trainer.max_completion_length=48", "engine.max_model_len=160", "trainer.learning_rate=0.01", "checkpoint.every=2",
]  # fmt: skip
DISK_KB = 2900  # two checkpoints and a little more; the third is written before the first is deleted


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def suffer(policy: str, folder: Path, outcome: Path) -> None:
    """Run on a small disk, then on a larger one, in a mount namespace of its own. The run is copied to `outcome`."""
    mount = ["mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, f"size={DISK_KB}k", "tmpfs", str(folder)], check=True)
    run = folder / "run"
    full = start(*RUN, f"policy.path={policy}", f"hydra.run.dir={run}")
    _, errors = full.communicate()
    assert full.returncode == 1, errors
    (line,) = errors.strip().splitlines()
    assert "disk full" in line, line
    assert f"python run.py resume={run}" in line, line
    num_rows = len(read.metrics(run))
    assert 2 <= num_rows < STEPS
    subprocess.run([*mount, "remount,size=64m", "tmpfs", str(folder)], check=True)
    killed = start(f"resume={run}")
    row = random.randrange(num_rows, STEPS)
    while killed.poll() is None and len(read.metrics(run)) < row:
        time.sleep(0.001)
    time.sleep(random.random())
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    last = start(f"resume={run}")
    printed, errors = last.communicate()
    assert last.returncode == 0, errors
    assert "resuming after step" in printed
    shutil.copytree(run, outcome)


def test_full_disk_and_kill_leave_no_trace(tiny_policy: str, tmp_path: Path) -> None:
    if os.system("unshare -rm true 2>/dev/null"):
        pytest.skip("this machine lets no user mount a small disk (unshare -rm)")
    whole = tmp_path / "whole"
    undisturbed = start(*RUN, f"policy.path={tiny_policy}", f"hydra.run.dir={whole}")
    _, errors = undisturbed.communicate()
    assert undisturbed.returncode == 0, errors
    (tmp_path / "disk").mkdir()
    command = f"from tests.training.test_survival import *; suffer({tiny_policy!r}, Path({str(tmp_path / 'disk')!r}), "
    command += f"Path({str(tmp_path / 'other')!r}))"
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert timeless(read.metrics(whole)) == timeless(read.metrics(tmp_path / "other"))
    assert [row["step"] for row in read.metrics(whole)] == list(range(1, STEPS + 1))
    assert list(differing_files(whole, tmp_path / "other")) == []
