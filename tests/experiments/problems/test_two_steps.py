"""Two complete training steps with a tiny policy and small batches: the paper's settings, and problems of a library."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from published import ROWS

from analysis import read
from experiments.run.errors import CONFIGS

pytestmark = pytest.mark.slow

SIZE = [
    "engine=cpu",
    "engine.processes=1",
    "trainer.max_steps=2",
    "trainer.per_device_train_batch_size=2",
    "trainer.gradient_accumulation_steps=2",
    "trainer.num_generations=2",
    "trainer.max_completion_length=48",
    "engine.max_model_len=512",
    "++trainer.vllm_enable_sleep_mode=false",  # CPUs have none
    "wandb=off",
]


@pytest.mark.parametrize(("setting", "name"), [("maths_paper", "dsr_sub"), ("code_paper", "deepcoder")])
def test_two_steps(setting: str, name: str, tiny_policy: str, tmp_path: Path) -> None:
    rows = [{**ROWS[name][0], "prompt": [{"role": "user", "content": f"How many is {i}+1?"}]} for i in range(2)]
    rows = rows if name == "dsr_sub" else ROWS[name]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    overrides = [f"setting={setting}", f"data.path={path}", f"policy.path={tiny_policy}", *SIZE]
    done = subprocess.run(
        [sys.executable, "run.py", "task=train", "arm=das", f"out={tmp_path}", *overrides],
        cwd=CONFIGS.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"data {name}: {len(rows)} problems of {len(rows)} rows" in done.stdout
    (folder,) = (tmp_path / "train").iterdir()
    assert len(read.metrics(folder)) == 2
    rollouts = [row for step in (1, 2) for row in read.rollout(folder, step)]
    assert {row["problem_id"].split("-")[0] for row in rollouts} == {name}
    assert f"problems: {len(rows)}" in (folder / "config.yaml").read_text()


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed: make reasoning-gym")
def test_two_steps_on_problems_of_a_library(tiny_policy: str, tmp_path: Path) -> None:
    data = ["data=reasoning_gym", "data.task=spell_backward", "reward=reasoning_gym", "data.problems=2"]
    evaluated = ["eval.every=2", "eval.problems=2", "eval.samples=2"]
    size = [f"+{each}" if "accumulation" in each else each for each in SIZE]
    done = subprocess.run(
        [sys.executable, "run.py", f"hydra.run.dir={tmp_path}", f"policy.path={tiny_policy}", *data, *evaluated, *size],
        cwd=CONFIGS.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "identical: yes" in done.stdout
    rows = read.metrics(tmp_path / "arms" / "das")
    assert [each["step"] for row in rows for each in row["eval"]] == [0, 2]
    assert all(row["judge_failures"] == 0 for row in rows)
