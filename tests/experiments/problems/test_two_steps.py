"""Two training steps on problems of a library, with a tiny policy. test_paper_settings.py has published sets."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts import run_script

from analysis import read

pytestmark = pytest.mark.slow

SIZE = [
    "trainer.max_steps=2",
    "trainer.per_device_train_batch_size=2",
    "+trainer.gradient_accumulation_steps=2",
    "trainer.num_generations=2",
    "trainer.max_completion_length=48",
    "engine.max_model_len=512",
    "wandb=off",
]


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed: make reasoning-gym")
def test_two_steps_on_problems_of_a_library(tiny_policy: str, tmp_path: Path) -> None:
    data = ["data=reasoning_gym", "data.task=spell_backward", "reward=reasoning_gym", "data.problems=2"]
    evaluated = ["eval.every=2", "eval.problems=2", "eval.samples=2"]
    where = [f"hydra.run.dir={tmp_path}", f"policy.path={tiny_policy}"]
    assert "identical: yes" in run_script("run.py", *where, *data, *evaluated, *SIZE)
    rows = read.metrics(tmp_path / "arms" / "das")
    assert [each["step"] for row in rows for each in row["eval"]] == [0, 2]
    assert all(row["judge_failures"] == 0 for row in rows)
