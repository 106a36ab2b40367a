"""FSDP 2 on two ranks without a GPU (torch's fully_shard over gloo): each holds a half, and drafts change nothing."""

from pathlib import Path
from typing import Any

import pytest
from scripts import RANK_RUN, SIZES, TWO_RANKS, of_ranks, run_script

from analysis import read

pytestmark = pytest.mark.slow

SHARDED = 'model_init_kwargs={"distributed_config": {"fsdp_size": 2}}'
EXACT = ("tokens", "logprobs", "losses")


def test_drafts_change_nothing_in_a_sharded_training(
    two_ranks: list[Any], repetitive_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    run_script(*TWO_RANKS, RANK_RUN, "none,das", repetitive_policy, tmp_path, SHARDED)
    none, das = of_ranks(tmp_path, "none"), of_ranks(tmp_path, "das")
    for of_none, of_das in zip(none, das, strict=True):
        for before, after in zip(of_none["steps"], of_das["steps"], strict=True):
            assert [after[name] for name in EXACT] == [before[name] for name in EXACT]
        assert of_das["weights"] == of_none["weights"]
    assert none[0]["weights"] != none[1]["weights"]  # each rank holds a half
    assert [rank["steps"][0]["tokens"] for rank in none] == [rank["steps"][0]["tokens"] for rank in two_ranks]
    assert sum(step["accepted"] for rank in das for step in rank["steps"]) > 0


@pytest.mark.nightly
def test_run_py_shards_the_policy_and_says_so(
    repetitive_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    settings = [
        *SIZES, "task=train", "arm=das", "engine.processes=2", "checkpoint.every=0", "wandb=off", "budget=fixed",
        f"policy.path={repetitive_policy}", "data.problems=4", "trainer.max_steps=2",
        f"hydra.run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    printed = run_script(*TWO_RANKS, "run.py", *settings)
    assert "FSDP 2: accelerate has none on a CPU, so torch's fully_shard shards the policy" in printed
    assert [row["step"] for row in read.metrics(tmp_path / "run")] == [1, 2]
