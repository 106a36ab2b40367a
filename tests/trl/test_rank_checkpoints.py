"""Two ranks with an engine each are stopped while they write checkpoints, and resumed: no bit differs afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

from analysis import read
from experiments.harness.resume import CHECKPOINTS
from experiments.tasks.kill_test import timeless
from experiments.training import checkpoint

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
STEPS = 6  # of 2 an epoch
RUN = [
    "task=train", "arm=das", "engine.processes=2", "reward=brevity", "wandb=off", "budget=fixed", "budget.tokens=8",
    "data.problems=8", f"trainer.max_steps={STEPS}", "trainer.per_device_train_batch_size=8",
    "trainer.num_generations=4", "trainer.max_completion_length=48", "engine.max_model_len=160",
    "trainer.learning_rate=0.01", "checkpoint.every=1",
]  # fmt: skip


def launched(*arguments: str, fault: tuple[str, ...] = (), processes: int = 2) -> subprocess.CompletedProcess[str]:
    script = [str(Path(__file__).with_name("rank_faults.py")), *fault] if fault else ["run.py"]
    command = [*LAUNCH, str(processes), *script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


def error_lines(run: subprocess.CompletedProcess[str]) -> set[str]:
    return {line for line in run.stderr.splitlines() if line.startswith("error: ")}


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of a checkpoint's files, but for what tells runs apart."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if name != checkpoint.MANIFEST}


def test_killed_ranks_and_a_full_disk_leave_no_trace(repetitive_policy: str, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    start = [*RUN, f"policy.path={repetitive_policy}"]
    run = launched(*start, f"hydra.run.dir={whole}")
    assert run.returncode == 0, run.stderr

    killed = launched(*start, f"hydra.run.dir={stopped}", fault=("kill", "3"))
    assert killed.returncode != 0
    assert checkpoint.steps(stopped / CHECKPOINTS)[0] == 2  # the third was never complete
    assert (stopped / "trainer" / "checkpoint-3").exists()

    full = launched(f"resume={stopped}", fault=("full", "5"))
    assert full.returncode != 0
    (line,) = error_lines(full)
    assert "the checkpoint of step 5 could not be written: [Errno 28] No space left on device (rank 1)" in line
    assert f"python -m torch.distributed.run --standalone --nproc_per_node 2 run.py resume={stopped}" in line
    assert checkpoint.steps(stopped / CHECKPOINTS)[0] == 4
    assert not (stopped / "trainer" / "checkpoint-5").exists()

    other = launched(f"resume={stopped}", "engine.processes=1", processes=1)
    (line,) = error_lines(other)
    assert "2 processes wrote the checkpoints" in line

    last = launched(f"resume={stopped}")
    assert last.returncode == 0, last.stderr
    assert "resuming after step 4" in last.stdout
    assert timeless(read.metrics(stopped)) == timeless(read.metrics(whole))
    assert [row["step"] for row in read.metrics(whole)] == list(range(1, STEPS + 1))
    for step in range(1, STEPS + 1):
        assert timeless(read.rollout(stopped, step)) == timeless(read.rollout(whole, step))
    assert read.final(stopped) == read.final(whole)
    kept, kept_whole = (files(checkpoint.step_folder(run / CHECKPOINTS, STEPS)) for run in (stopped, whole))
    assert {"rng_state_0.pth", "rng_state_1.pth", "history.npz", "rank1/history.npz"} <= kept.keys()
    assert [name for name in kept_whole if kept.get(name) != kept_whole[name]] == []
    assert kept.keys() == kept_whole.keys()
    assert kept["history.npz"] != kept["rank1/history.npz"]

    finished = launched(f"resume={stopped}")  # only brings the last files back
    assert finished.returncode == 0, finished.stderr
    assert (stopped / "history_rank1.npz").read_bytes() == kept["rank1/history.npz"]
