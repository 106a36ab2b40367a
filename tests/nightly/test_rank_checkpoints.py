"""Two ranks are stopped while they write checkpoints, and resumed: no bit differs afterwards. Each has an engine, and
the whole policy or a shard of it (FSDP 2, over gloo).
"""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import RANKS, RANKS_STEPS
from equal_runs import timeless
from scripts import ROOT, TWO_RANKS

from analysis import read
from experiments.arm import train_arm
from experiments.arm.resume import CHECKPOINTS
from experiments.training import checkpoint


def launched(*arguments: str, fault: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    script = [str(ROOT / "tests/trl/rank_faults.py"), *fault] if fault else ["run.py"]
    command = [sys.executable, *TWO_RANKS, *script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


def error_lines(run: subprocess.CompletedProcess[str]) -> set[str]:
    return {line for line in run.stderr.splitlines() if line.startswith("error: ")}


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of a checkpoint's files, but for what tells runs apart."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if name != checkpoint.MANIFEST}


def require_equal(stopped: Path, whole: Path) -> None:
    assert timeless(read.metrics(stopped)) == timeless(read.metrics(whole))
    assert [row["step"] for row in read.metrics(whole)] == list(range(1, RANKS_STEPS + 1))
    for step in range(1, RANKS_STEPS + 1):
        assert timeless(read.rollout(stopped, step)) == timeless(read.rollout(whole, step))
    assert read.final(stopped) == read.final(whole)


def test_killed_ranks_and_a_full_disk_leave_no_trace(
    ranks_run: Path, repetitive_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = ranks_run, tmp_path / "stopped"
    start = [*RANKS, "arm=das", f"policy.path={repetitive_policy}", f"hydra.run.dir={stopped}"]
    killed = launched(*start, fault=("kill", "2"))
    assert killed.returncode != 0
    assert checkpoint.steps(stopped / CHECKPOINTS) == [1]  # the second was never complete
    assert (stopped / "trainer" / "checkpoint-2").exists()

    full = launched(f"resume={stopped}", fault=("full", "3"))
    assert full.returncode != 0
    (line,) = error_lines(full)
    assert "the checkpoint of step 3 could not be written: [Errno 28] No space left on device (rank 1)" in line
    assert f"python -m torch.distributed.run --standalone --nproc_per_node 2 run.py resume={stopped}" in line
    assert checkpoint.steps(stopped / CHECKPOINTS)[0] == 2
    assert not (stopped / "trainer" / "checkpoint-3").exists()

    last = launched(f"resume={stopped}")
    assert last.returncode == 0, last.stderr
    assert "resuming after step 2" in last.stdout
    require_equal(stopped, whole)
    kept, kept_whole = (files(checkpoint.step_folder(run / CHECKPOINTS, RANKS_STEPS)) for run in (stopped, whole))
    assert {"rng_state_0.pth", "rng_state_1.pth", "history.npz", "rank1/history.npz"} <= kept.keys()
    assert [name for name in kept_whole if kept.get(name) != kept_whole[name]] == []
    assert kept.keys() == kept_whole.keys()
    assert kept["history.npz"] != kept["rank1/history.npz"]

    finished: Any = SimpleNamespace(folder=stopped, start=RANKS_STEPS)  # resumed, it only brings the last files back
    for rank, name in enumerate(("history.npz", "history_rank1.npz")):
        (stopped / name).unlink()
        monkeypatch.setenv("RANK", str(rank))
        train_arm.restore_last_files(finished)
    assert (stopped / "history.npz").read_bytes() == kept["history.npz"]
    assert (stopped / "history_rank1.npz").read_bytes() == kept["rank1/history.npz"]


def test_killed_shards_end_as_those_left_alone(
    repetitive_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That drafts change nothing in a sharded training: test_sharded_scripts.py."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    start, whole, stopped = [*RANKS, "arm=das", f"policy.path={repetitive_policy}"], tmp_path / "a", tmp_path / "b"
    alone = launched(*start, f"hydra.run.dir={whole}")
    assert "FSDP 2: accelerate has none on a CPU, so torch's fully_shard shards the policy" in alone.stdout
    assert launched(*start, f"hydra.run.dir={stopped}", fault=("kill", "3")).returncode != 0
    assert checkpoint.steps(stopped / CHECKPOINTS)[0] == 2
    assert "resuming after step 2" in launched(f"resume={stopped}").stdout
    require_equal(stopped, whole)
