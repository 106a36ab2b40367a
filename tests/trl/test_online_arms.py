"""Arms whose draft model or MTP layer learns in the run: equal to none in every bit, and resumed bit for bit."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import mtp_policy, random_policy, sharpened
from test_eagle3_arm import run_py

from analysis import read
from das.heads import mtp
from das.heads.on_disk import mtp_problem
from experiments.tasks.kill_test import differing_files, timeless

pytestmark = pytest.mark.slow

RUN = [
    "reward=brevity", "wandb=off", "data.problems=4", "task.derived=false", "trainer.max_steps=4",
    "trainer.per_device_train_batch_size=8", "trainer.num_generations=4", "trainer.max_completion_length=48",
    "engine.max_model_len=160", "trainer.learning_rate=0.01", "checkpoint.every=2", "head.share=0.5",
]  # fmt: skip


def compared(tmp_path: Path, policy: str, frozen: str, online: str, *settings: str) -> tuple[dict[str, float], Path]:
    """Compare and resume. Returns tokens per pass by arm, and the folder of the arms."""
    run, arms = tmp_path / "run", ("none", frozen, online)
    cache = f"cache={tmp_path / 'cache'}"
    printed = run_py(
        f"arms=[{','.join(arms)}]", *RUN, *settings, f"policy.path={policy}", cache, f"hydra.run.dir={run}"
    )
    assert printed.count("identical: yes") == 2
    result = json.loads((run / "result.json").read_text())["arms"]
    assert result[online]["head_train_s"]["min"] >= 0
    assert "head_train_s" not in result[frozen]
    rows = read.metrics(run / "arms" / online)
    assert any(row["head_texts"] and row["head_loss"] > 0 for row in rows)

    whole = tmp_path / "whole"
    shutil.copytree(run, whole)
    for name in arms:
        shutil.rmtree(run / "arms" / name / "checkpoints" / "step_00004")
    assert "resuming after step 2" in run_py(f"resume={run}", cache)
    for name in arms:
        one, other = run / "arms" / name, whole / "arms" / name
        assert read.final(one) == read.final(other)
        assert ("head" in read.final(one)) == (name == online)
        assert list(differing_files(one, other)) == []
    timed = {"head_train_s"}
    again, before = (
        [{key: value for key, value in row.items() if key not in timed} for row in timeless(read.metrics(folder))]
        for folder in (run / "arms" / online, whole / "arms" / online)
    )
    assert again == before
    return {name: result[name]["tokens_per_pass"]["overall"] for name in arms[1:]}, run / "arms"


def test_a_draft_model_learns_in_the_run(tmp_path: Path) -> None:
    policy = sharpened(Path(random_policy(tmp_path / "policy")))
    draft_model = random_policy(tmp_path / "draft", num_hidden_layers=1, hidden_size=32)
    models = [f"++arm.speculative.model={draft_model}"]
    tokens, _ = compared(tmp_path, policy, "draft_model", "draft_model_online", *models, "++arm.online_rate=0.3")
    assert tokens["draft_model_online"] > tokens["draft_model"]


def test_an_mtp_layer_learns_in_the_run(tmp_path: Path) -> None:
    policy = mtp_policy(tmp_path / "policy")
    tokens, arms = compared(tmp_path, policy, "mtp", "mtp_online")
    assert tokens["mtp_online"] > tokens["mtp"]
    # Checkpoints are whole policies: transformers saves them without the layer, which is put back.
    layers = {name: arms / name / "checkpoints" / "step_00004" for name in ("none", "mtp", "mtp_online")}
    assert not any(mtp_problem(str(folder), 1) for folder in layers.values())
    weights = {name: (folder / mtp.WEIGHTS).read_bytes() for name, folder in layers.items()}
    assert weights["none"] == weights["mtp"] == (Path(policy) / mtp.WEIGHTS).read_bytes() != weights["mtp_online"]
