"""task=audit end to end on a tiny policy, and the audit's eye for differences."""

import json
from pathlib import Path
from typing import Any

from scripts import run_script

from experiments.tasks.audit import describe_sample, sample_agreement


def result_of(printed: str) -> dict[str, Any]:
    """The result of a run, whose path is in the last line that it prints."""
    return dict(json.loads(Path(printed.strip().splitlines()[-1].removeprefix("result: ")).read_text()))


def test_audit_finds_this_machine_exact(tiny_policy: str, tmp_path: Path) -> None:
    printed = run_script(
        "run.py",
        "task=audit",
        f"policy.path={tiny_policy}",
        f"out={tmp_path}",
        "task.draws=100000",
        "task.steps=3",
        "task.train_steps=0",
        "data.problems=2",
        "trainer.per_device_train_batch_size=8",
        "trainer.num_generations=4",
        "trainer.max_completion_length=64",
        "engine.max_model_len=160",
        "budget=fixed",  # the default one finds that drafts for so random a text do not pay
    )
    sample = result_of(printed)["sample"]
    assert sample["sequences_agreeing"] == sample["sequences"] == 24
    assert sample["positions_with_equal_logits"] == sample["positions"] == sample["tokens"] > 24
    assert sample["largest_logit_difference"] == 0
    assert sample["accepted"] > 0
    assert "level 1" in printed
    assert "24 of 24 sequences agree" in printed


def test_differences_are_counted_up_to_the_first_divergence() -> None:
    plain = [
        {"tokens": [1, 2, 3], "logits": [{1: 0.5, 9: 0.1}, {2: 1.0}, {3: 2.0}]},
        {"tokens": [4, 5], "logits": [{4: 0.0}, {5: 0.0}]},
    ]
    drafted = [
        {"tokens": [1, 7], "logits": [{1: 0.5, 9: 0.1}, {2: 1.25, 7: 3.0}]},
        {"tokens": [4, 5], "logits": [{4: 0.0}, {5: 0.125}]},
    ]
    sample = sample_agreement(plain, drafted)
    assert (sample["tokens"], sample["tokens_agreeing"]) == (5, 3)
    assert (sample["sequences"], sample["sequences_agreeing"]) == (2, 1)
    assert (sample["positions"], sample["positions_with_equal_logits"]) == (4, 2)
    assert sample["largest_logit_difference"] == sample["largest_logit_difference_at_first_divergence"] == 0.25
    assert "3 of 5 tokens, 1 of 2 sequences agree" in describe_sample({**sample, "accepted": 1})
