"""The runs of a sweep are made in one process, and none leaves its engine behind."""

import subprocess
import sys
from pathlib import Path

from scripts import ROOT, SIZES


def test_a_sweep_needs_no_more_memory_with_more_runs(tiny_policy: str, tmp_path: Path) -> None:
    """A KV cache has a gibibyte. While an engine is built, there may be that of the run before."""
    options = [
        *SIZES,
        "data.problems=2",
        "trainer.max_steps=1",
        "wandb=off",
        f"policy.path={tiny_policy}",
        f"out={tmp_path}",
    ]
    command = [sys.executable, "run.py", "-m", "task=train", "arm=none", "seed=0,1,2", *options]
    most: list[int] = []  # memory that the process had when each run was over, in KiB
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("run: "):
                status = Path(f"/proc/{run.pid}/status").read_text()
                most.append(int(status.split("VmHWM:")[1].split()[0]))
    assert run.returncode == 0
    assert len(most) == 3
    assert most[2] < most[1] + 600 * 1024
