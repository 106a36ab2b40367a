"""Arms with an EAGLE-3 head: equal to none in every bit, the head learns, and a resumed run ends with the same head."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import random_policy, sharpened

from analysis import read
from experiments.tasks.kill_test import differing_files, timeless

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ARMS = ("none", "eagle3_frozen", "eagle3_online")
RUN = [
    f"arms=[{','.join(ARMS)}]", "reward=brevity", "wandb=off", "data.problems=4", "task.derived=false",
    "trainer.max_steps=4", "trainer.per_device_train_batch_size=8", "trainer.num_generations=4",
    "trainer.max_completion_length=48", "engine.max_model_len=160", "trainer.learning_rate=0.01", "checkpoint.every=2",
    "head.responses=16", "head.epochs=2", "head.share=0.5",
]  # fmt: skip


def run_py(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "run.py", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_arms_with_heads(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    random_policy(policy, num_hidden_layers=4)  # so that there are three auxiliary layers
    sharpened(policy)
    run, cache = tmp_path / "run", f"cache={tmp_path / 'cache'}"
    printed = run_py(*RUN, f"policy.path={policy}", cache, f"hydra.run.dir={run}")
    assert printed.count("identical: yes") == 2
    assert printed.count("draft head made in") == 1  # the arms share it
    result = json.loads((run / "result.json").read_text())
    assert result["arms"]["eagle3_online"]["head_train_s"]["min"] >= 0
    assert "head_train_s" not in result["arms"]["eagle3_frozen"]
    for name in ARMS[1:]:
        assert result["arms"][name]["accepted"]["mean"] > 0
    online = read.metrics(run / "arms" / "eagle3_online")
    assert any(row["head_texts"] and row["head_loss"] > 0 for row in online)
    # The policy moves fast here, and the head that follows it drafts better than the one that stays.
    arms = result["arms"]
    assert arms["eagle3_online"]["tokens_per_pass"]["overall"] > arms["eagle3_frozen"]["tokens_per_pass"]["overall"]

    whole = tmp_path / "whole"
    shutil.copytree(run, whole)
    for name in ARMS:
        shutil.rmtree(run / "arms" / name / "checkpoints" / "step_00004")
    assert "resuming after step 2" in run_py(f"resume={run}", cache)
    for name in ARMS:
        one, other = run / "arms" / name, whole / "arms" / name
        assert read.final(one) == read.final(other)
        assert list(differing_files(one, other)) == []
        if name == "eagle3_online":
            assert "head" in read.final(one)
            times = ("head_train_s",)
            rows = [[{k: v for k, v in row.items() if k not in times} for row in timeless(read.metrics(f))]
                    for f in (one, other)]  # fmt: skip
            assert rows[0] == rows[1]
