"""The papers' own settings run: their configs and problems, with a policy of two random layers, none against das.

Random weights answer nothing right, so all rewards are 0 and the update is one of size 0.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
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
    "data.problems=2": "two steps must be two epochs, so that there is a history to draft from",
    "trainer.max_steps=2": "minutes",
    "trainer.max_completion_length=32": "minutes",
    "budget=fixed": "the paper names no budget; this one drafts the same whatever the clock says",
    "wandb=off": "no files of a test",
}
# The setting, its file, and the paper's policy with its widths divided by 16, except for the size of a head.
MATHS = {
    "setting": "maths_paper",
    "file": "dsr_sub.parquet",
    "set": "dsr_sub",
    "architecture": "Qwen2",  # DeepSeek-R1-Distill-Qwen-7B; it has no head_dim of its own, and 28 heads make 1.75
    "sizes": {"hidden_size": 256, "intermediate_size": 1184, "num_attention_heads": 2, "num_key_value_heads": 1},
    "tied": False,
    # 2 problems x 16 responses, as many of each problem as in the paper; 256 are for 8 processes of 16 problems each.
    "overrides": ["trainer.gradient_accumulation_steps=32"],
}
CODE = {
    "setting": "code_paper",
    "file": "deepcoder_leetcode.json",
    "set": "deepcoder",
    "architecture": "Qwen3",  # Qwen3-8B
    "sizes": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 128,
    },
    "tied": False,
    "overrides": [],  # 16 responses of a process are 2 problems x 8
}


def random_policy(paper: dict[str, Any], folder: Path) -> Path:
    """Two layers of random weights and a tokenizer that stands in for the paper's. It repeats itself a little."""
    import torch
    import transformers

    from experiments.policies.train import train_tokenizer

    texts = ["Let us think step by step: the answer is \\boxed{12}.", "def solve(numbers): return sum(numbers)"]
    tokenizer = train_tokenizer(texts, vocab_size=512)
    tokenizer.model_max_length = 32768
    config = getattr(transformers, f"{paper['architecture']}Config")(
        vocab_size=384,  # more than the tokenizer has, as in the real models
        num_hidden_layers=2,
        max_position_embeddings=32768,
        tie_word_embeddings=paper["tied"],
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **paper["sizes"],
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{paper['architecture']}ForCausalLM")(config)
    model.get_output_embeddings().weight.data.normal_(0.0, 0.2)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def made_up_file(paper: dict[str, Any], folder: Path) -> Path:
    """Made-up problems in the form of the published file."""
    path, row = folder / paper["file"], ROWS[paper["set"]][-1]
    if paper is MATHS:
        questions = [f"How many is $1+{i}$? Output the final answer within \\boxed{{}}." for i in range(4)]
        rows = [{**row, "prompt": [{"role": "user", "content": question}]} for question in questions]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps([{**row, "problem": f"{row['problem']} (Version {i}.)"} for i in range(4)]))
    return path


@pytest.mark.parametrize(
    "paper", [MATHS, pytest.param(CODE, marks=pytest.mark.nightly)], ids=lambda paper: paper["setting"]
)
def test_two_steps_of_a_papers_setting(paper: dict[str, Any], tmp_path: Path) -> None:
    file = made_up_file(paper, tmp_path)
    policy = random_policy(paper, tmp_path / "policy")
    overrides = [f"setting={paper['setting']}", f"data.path={file}", f"policy.path={policy}", "arms=[none,das]"]
    printed = run_script("run.py", f"out={tmp_path}", *overrides, *OVERRIDES, *paper["overrides"])
    assert f"data {paper['set']}: 2 problems of " in printed
    (folder,) = (tmp_path / "compare").iterdir()
    result = json.loads((folder / "result.json").read_text())
    checks = {key: value for key, value in result["identical"]["das"].items() if key != "first_difference"}
    assert all(checks.values()), checks
    assert result["arms"]["das"]["drafted"]["max"] > 0
    assert "problems: 2" in (folder / "config.yaml").read_text()
    trainer = read.config(folder)["trainer"]
    per_step = 2 * trainer["num_generations"]
    rollouts = [read.rollout(folder / "arms" / "das", step) for step in (1, 2)]
    assert [len(responses) for responses in rollouts] == [per_step, per_step]
    assert {row["problem_id"].split("-")[0] for responses in rollouts for row in responses} == {paper["set"]}
    assert trainer["temperature"] == 0.6
