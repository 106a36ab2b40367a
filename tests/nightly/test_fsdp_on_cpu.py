"""FSDP 2 on two ranks without a GPU (torch's fully_shard over gloo): each holds a half, and drafts change nothing."""

from pathlib import Path
from typing import Any

import pytest
from scripts import RANK_RUN, ROOT, SIZES, TWO_RANKS, exact, of_ranks, run_script, scripts, world

from analysis import read
from analysis.metrics import timeless
from experiments.arm.resume import CHECKPOINTS
from experiments.training import checkpoint

SHARDED = 'model_init_kwargs={"distributed_config": {"fsdp_size": 2}}'
RANK_FAULTS = ROOT / "tests/trl/rank_faults.py"


def test_drafts_change_nothing_in_a_sharded_training(
    two_ranks: list[Any], repetitive_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    run_script(*TWO_RANKS, RANK_RUN, "none,das", repetitive_policy, tmp_path, SHARDED)
    none, das = of_ranks(tmp_path, "none"), of_ranks(tmp_path, "das")
    assert exact(das) == exact(none)
    assert none[0]["weights"] != none[1]["weights"]  # each rank holds a half
    assert [rank["steps"][0]["tokens"] for rank in none] == [rank["steps"][0]["tokens"] for rank in two_ranks]
    assert sum(step["accepted"] for rank in das for step in rank["steps"]) > 0


def test_a_killed_run_py_ends_as_the_one_left_alone(
    repetitive_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    settings = [
        *SIZES, "task=train", "arm=das", "engine.processes=2", "checkpoint.every=1", "wandb=off", "budget=fixed",
        f"policy.path={repetitive_policy}", "data.problems=4", "trainer.max_steps=4", "trainer.learning_rate=0.01",
    ]  # fmt: skip
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    printed = run_script(*TWO_RANKS, "run.py", *settings, f"hydra.run.dir={whole}")
    assert "FSDP 2: accelerate has none on a CPU, so torch's fully_shard shards the policy" in printed
    words = [str(RANK_FAULTS), "kill", "3", *settings, f"hydra.run.dir={stopped}"]
    assert any(each.code != 0 for each in scripts(words, world(2)))
    assert checkpoint.steps(stopped / CHECKPOINTS)[0] == 2
    assert "resuming after step 2" in run_script(*TWO_RANKS, "run.py", f"resume={stopped}")
    assert timeless(read.metrics(stopped)) == timeless(read.metrics(whole))
    assert [row["step"] for row in read.metrics(whole)] == [1, 2, 3, 4]
    for step in range(1, 5):
        assert timeless(read.rollout(stopped, step)) == timeless(read.rollout(whole, step))
    assert read.final(stopped) == read.final(whole)
