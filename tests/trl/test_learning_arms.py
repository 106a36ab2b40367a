"""Arms whose drafter is a model with weights of its own: equal to none in every bit, and resumed bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import mtp_policy, random_policy, sharpened
from lag_runs import outcome, train_again, train_all

from analysis import read
from das.models.head_files import mtp_problem
from experiments.heads import mtp
from experiments.tasks.kill_test import differing_files, timeless

pytestmark = pytest.mark.slow

STEPS = 4
RUN = [
    "data.problems=4", f"trainer.max_steps={STEPS}", "checkpoint.every=2", "trainer.learning_rate=0.01",
    "head.share=0.5", "head.responses=16", "head.epochs=2",
]  # fmt: skip


def tokens_per_pass(folder: Path) -> float:
    rows = read.metrics(folder)
    return float(sum(row["tokens"] for row in rows) / sum(row["passes"] for row in rows))


def test_a_draft_head_learns_in_the_run(in_process: Callable[..., Any], tmp_path: Path) -> None:
    policy = sharpened(Path(random_policy(tmp_path / "policy", num_hidden_layers=4)))  # three auxiliary layers
    draft_model = random_policy(tmp_path / "draft", num_hidden_layers=1, hidden_size=32)
    settings = [*RUN, f"cache={tmp_path / 'cache'}"]
    runs = {name: [name, *settings] for name in ("none", "eagle3_frozen", "eagle3_online")}
    runs["draft_model"] = ["draft_model", *settings, f"++arm.speculative.model={draft_model}"]
    arms = tmp_path / "arms"
    in_process(train_all, runs, policy, arms)
    plain = outcome(arms / "none")
    for name in runs.keys() - {"none"}:
        learns = name == "eagle3_online"
        found = outcome(arms / name)
        assert (found["final"].pop("head", None) is not None) == learns
        assert found == plain
        assert any("head_train_s" in row for row in read.metrics(arms / name)) == learns
        assert sum(row["accepted"] for row in read.metrics(arms / name)) > 0
    whole, again = arms / "eagle3_online", tmp_path / "again"
    assert any(row["head_texts"] and row["head_loss"] > 0 for row in read.metrics(whole))
    # The policy moves fast here, and a head that follows it drafts better than the one that stays.
    assert tokens_per_pass(whole) > tokens_per_pass(arms / "eagle3_frozen")
    assert len(list((tmp_path / "cache" / "heads").iterdir())) == 1  # the arms share it

    in_process(train_again, "eagle3_online", policy, whole, again, 2, *settings)
    assert read.final(again) == read.final(whole)
    assert list(differing_files(again, whole)) == []
    assert timeless(read.metrics(again)) == timeless(read.metrics(whole))


def test_checkpoints_of_a_policy_with_an_mtp_layer_are_whole_policies(
    in_process: Callable[..., Any], tmp_path: Path
) -> None:
    """transformers saves them without the layer, which is put back."""
    policy, arms = mtp_policy(tmp_path / "policy"), tmp_path / "arms"
    in_process(train_all, {name: [name, *RUN] for name in ("none", "mtp")}, policy, arms)
    assert outcome(arms / "mtp") == outcome(arms / "none")
    assert sum(row["accepted"] for row in read.metrics(arms / "mtp")) > 0
    for name in ("none", "mtp"):
        saved = arms / name / "checkpoints" / f"step_0000{STEPS}"
        assert mtp_problem(str(saved), 1) == ""
        assert (saved / mtp.WEIGHTS).read_bytes() == (Path(policy) / mtp.WEIGHTS).read_bytes()
