"""The papers' own settings run: their configs, and problems in their form, on a tiny policy with heads as large as
theirs, none against das.

Random weights answer nothing right, so all rewards are 0 and the update is one of size 0.
"""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from conftest import random_policy, sharpened
from published import ROWS
from scripts import run_script

from analysis import read

pytestmark = pytest.mark.slow

# Every setting that differs from the paper's, and why.
OVERRIDES = {
    "engine=cpu": "there is no GPU",
    "trainer.vllm_enable_sleep_mode=false": "CPUs have none",
    "engine.processes=1": "there are two cores in place of 8 or 16 GPUs",
    "task.lock_step=true": "with one process each, arms need no launcher (tests/trl/test_ranks.py has one)",
    "engine.max_num_seqs=8": "the default on the CPU is a micro-batch, which is one response here",
    "engine.max_model_len=544": "long prompts take minutes; the set leaves them out",
    "data.max_prompt_tokens=512": "the same",
    "trainer.max_steps=2": "minutes",
    "trainer.max_completion_length=32": "minutes",
    "budget=fixed": "the paper names no budget; this one drafts the same whatever the clock says",
    "wandb=off": "no files of a test",
}
# Of each setting its set, the form of its file, the problems of a step and an epoch, so that the second step has a
# history to draft from, and further overrides.
PAPERS = {
    # 16 responses, as many of each problem as in the paper; 256 are for 8 processes of 16 problems each.
    "maths_paper": ("dsr_sub", "rows.parquet", 1, ["trainer.gradient_accumulation_steps=16"]),
    "code_paper": ("deepcoder", "rows.json", 2, []),  # 16 responses of a process are 2 problems x 8
}


def made_up_file(name: str, path: Path) -> None:
    """Write problems in the form of the published file of a set."""
    row = ROWS[name][-1]
    if path.suffix == ".parquet":
        chats = [[{"role": "user", "content": f"How many is $1+{i}$?"}] for i in range(4)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{**row, "prompt": chat} for chat in chats]), path)
    else:
        path.write_text(json.dumps([{**row, "problem": f"{row['problem']} (Version {i}.)"} for i in range(4)]))


@pytest.mark.parametrize("setting", ["maths_paper", pytest.param("code_paper", marks=pytest.mark.nightly)])
def test_two_steps_of_a_papers_setting(setting: str, tmp_path: Path) -> None:
    name, file, problems, further = PAPERS[setting]
    made_up_file(name, tmp_path / file)
    sizes = {"hidden_size": 256, "intermediate_size": 1184, "head_dim": 128, "max_position_embeddings": 32768}
    policy = sharpened(Path(random_policy(tmp_path / "policy", **sizes)))
    overrides = [f"setting={setting}", f"data.path={tmp_path / file}", f"policy.path={policy}", "arms=[none,das]"]
    overrides.append(f"data.problems={problems}")
    folder = tmp_path / "run"
    printed = run_script("run.py", f"hydra.run.dir={folder}", *overrides, *OVERRIDES, *further)
    assert f"data {name}: {problems} problems of 4 rows" in printed
    result = read.result(folder)
    checks = {key: value for key, value in result["identical"]["das"].items() if key != "first_difference"}
    assert all(checks.values()), checks
    assert result["arms"]["das"]["drafted"]["max"] > 0
    trainer = read.config(folder)["trainer"]
    rollouts = [read.rollout(folder / "arms" / "das", step) for step in (1, 2)]
    assert [len(responses) for responses in rollouts] == [problems * trainer["num_generations"]] * 2
    assert {row["problem_id"].split("-")[0] for responses in rollouts for row in responses} == {name}
    assert trainer["temperature"] == 0.6
