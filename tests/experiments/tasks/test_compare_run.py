"""A comparison on recorded text."""

from pathlib import Path

import numpy as np
import pytest
from scripts import GIVEN_PRICES, run_script
from steps_on_disk import json_lines

from analysis import read


@pytest.mark.slow
def test_arms_emit_a_recording(tmp_path: Path) -> None:
    """Each second response repeats the one before."""
    rng = np.random.default_rng(0)
    rows = [
        {"problem_id": problem, "response_ids": rng.integers(0, 1000, 20 + i).tolist() * 2}
        for problem in ("a", "b")
        for i in range(4)
    ]
    (tmp_path / "r.jsonl").write_text(json_lines(rows))
    arms = ["none", "stock", "das"]
    printed = run_script(
        "run.py", f"task.recorded={tmp_path / 'r.jsonl'}", "policy=random", "policy.shape=tiny", f"cache={tmp_path}",
        f"arms=[{','.join(arms)}]", "data.problems=2", "trainer.max_steps=2", "trainer.num_generations=2",
        "trainer.per_device_train_batch_size=4", "trainer.max_completion_length=64", "engine.max_num_seqs=1",
        "wandb=off", *GIVEN_PRICES, f"hydra.run.dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert "identical: yes (das against none: completions, rewards; nobody trained)" in " ".join(printed.split())
    result = read.result(tmp_path / "run")
    assert result["trained"] == "none"
    assert "distribution" not in result, "stock emits text of its own"
    assert result["ratio_to_none"].keys() == {"stock", "das"}
    texts = {
        arm: [[row["response_ids"] for row in read.rollout(tmp_path / "run" / "arms" / arm, step)] for step in (1, 2)]
        for arm in arms
    }
    assert texts["none"] == texts["das"] != texts["stock"]
    assert [[len(text) for text in step] for step in texts["stock"]] == [
        [len(text) for text in step] for step in texts["none"]
    ]
    assert sorted(len(text) for step in texts["none"] for text in step) == sorted([41, 43, 45, 47] * 2)
    passes = {arm: result["arms"][arm]["tokens_per_pass"]["overall"] for arm in arms}
    assert passes["none"] == passes["stock"] == 1
    assert passes["das"] > 1.2
    rows_of_none = read.metrics(tmp_path / "run" / "arms" / "none")
    assert all(row["decode_steps"] == row["tokens"] for row in rows_of_none), "one request at a time: the others wait"
