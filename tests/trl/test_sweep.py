"""The runs of a sweep are made in one process, and none leaves its engine behind."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_arm import ROOT, SMALL

pytestmark = pytest.mark.slow

# run.py as it comes, and then the most memory that the process had, in MiB.
RUN = """
import resource, runpy, sys
sys.argv = ["run.py", *sys.argv[1:]]
runpy.run_path("run.py", run_name="__main__")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def most_memory(policy: str, out: Path, seeds: str) -> int:
    options = [*SMALL, "trainer.max_steps=1", "wandb=off", f"policy.path={policy}", f"out={out}"]
    command = [sys.executable, "-c", RUN, "-m", "task=train", "arm=none", f"seed={seeds}", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("run: ") == len(seeds.split(","))
    return int(run.stdout.splitlines()[-1])


def test_a_sweep_needs_no_more_memory_with_more_runs(tiny_policy: str, tmp_path: Path) -> None:
    """A KV cache has a gibibyte. While an engine is built, there may be that of the run before."""
    of_two = most_memory(tiny_policy, tmp_path / "two", "0,1")
    assert most_memory(tiny_policy, tmp_path / "three", "0,1,2") < of_two + 600
