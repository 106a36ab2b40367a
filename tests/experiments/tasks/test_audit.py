"""task=audit and task=bench_sampler end to end on a tiny policy, and the audit's eye for differences."""

import json
import subprocess
import sys
from pathlib import Path

from experiments.tasks.audit import describe_sample, sample_agreement

ROOT = Path(__file__).resolve().parents[3]


def run(*overrides: str) -> tuple[str, Path]:
    done = subprocess.run([sys.executable, "run.py", *overrides], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, Path(done.stdout.strip().splitlines()[-1].removeprefix("result: "))


def test_audit_finds_this_machine_exact(tiny_policy: str, tmp_path: Path) -> None:
    printed, path = run(
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
    sample = json.loads(path.read_text())["sample"]
    assert sample["sequences_agreeing"] == sample["sequences"] == 24
    assert sample["positions_with_equal_logits"] == sample["positions"] == sample["tokens"] > 24
    assert sample["largest_logit_difference"] == 0
    assert sample["accepted"] > 0
    assert "level 1" in printed
    assert "24 of 24 sequences agree" in printed


def test_an_engine_that_cannot_be_built_ends_the_audit_in_one_line(tiny_policy: str, tmp_path: Path) -> None:
    command = [sys.executable, "run.py", "task=audit", f"policy.path={tiny_policy}", f"out={tmp_path}", "task.draws=10"]
    done = subprocess.run([*command, "engine.max_model_len=1024"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "lower engine.max_model_len=1024" in done.stderr


def test_audit_refuses_an_arm_without_drafts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "run.py", "task=audit", "arm=none", f"out={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "nothing to audit" in done.stderr


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


def test_bench_sampler_reports_ratios(tmp_path: Path) -> None:
    _, path = run(
        "task=bench_sampler",
        f"out={tmp_path}",
        "task.vocabularies=[64]",
        "task.batches=[2]",
        "task.repeats=3",
    )
    result = json.loads(path.read_text())
    for part in ("sampling", "verification"):
        assert 0 < result[part]["64x2"]["low"] <= result[part]["64x2"]["ratio"] <= result[part]["64x2"]["high"]
