"""Runs of run.py on a cluster are those on one engine in the process: comparison, evaluations, restarts."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from scripts import run_script

from analysis import read
from experiments.harness.resume import CHECKPOINTS
from experiments.training import checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="a cluster needs ray, which is not installed: run `make ray`"),
]
RUN = [
    "wandb=off", "budget=fixed", "data.problems=4", "reward=brevity", "trainer.max_steps=4",
    "trainer.per_device_train_batch_size=8", "trainer.num_generations=4", "trainer.max_completion_length=48",
    "trainer.learning_rate=0.001", "engine.max_model_len=160", "+engine.extra.num_gpu_blocks_override=256",
    "checkpoint.every=2", "eval.every=2", "eval.problems=3", "eval.samples=4",
]  # fmt: skip
ON_RAY = ["cluster=ray", "cluster.engines=2"]
EXACT = ("completions_digest", "rewards_digest", "loss", "grad_norm", "reward", "tokens", "length_mean")
ARMS = ("none", "das")


def run(*overrides: str) -> None:
    run_script("run.py", *overrides)


@pytest.fixture(scope="module")
def folders(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A comparison in one process for each arm, and the same on a cluster."""
    alone, clustered = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("clustered")
    for folder, more in ((alone, []), (clustered, ON_RAY)):
        run(f"policy.path={repetitive_policy}", *RUN, *more, f"hydra.run.dir={folder}")
    return alone, clustered


def outcome(folder: Path) -> dict[str, Any]:
    """What must be equal of an arm's run: numbers of its steps and evaluations, final weights and optimizer state."""
    rows = read.metrics(folder)
    evaluations = [
        {key: value for key, value in each.items() if key in ("step", "accuracy", "completions_digest", "tokens")}
        for row in rows
        for each in row.get("eval", [])
    ]
    return {
        "steps": [{name: row[name] for name in EXACT} for row in rows],
        "evaluations": evaluations,
        "final": json.loads((folder / "final.json").read_text()),
    }


def test_a_comparison_is_the_same(folders: tuple[Path, Path]) -> None:
    alone, clustered = folders
    for arm in ARMS:
        assert outcome(alone / "arms" / arm) == outcome(clustered / "arms" / arm)
    assert len(outcome(alone / "arms" / "das")["evaluations"]) == 3
    expected, found = (json.loads((folder / "result.json").read_text()) for folder in folders)
    assert set(found) == {*expected, "cluster"}
    assert found["identical"] == expected["identical"]
    assert found["cluster"]["engines"] == 2
    assert set(found["cluster"]) == {
        "engines", "lost_requests", "replayed_requests", "restarts", "handover_us_per_token"
    }  # fmt: skip
    assert sum(row["accepted"] for row in read.metrics(clustered / "arms" / "das")) > 0


def test_a_resumed_run_may_have_another_number_of_engines(folders: tuple[Path, Path], tmp_path: Path) -> None:
    alone, clustered = folders
    shutil.copytree(clustered, tmp_path / "run")
    for arm in ARMS:
        saved = tmp_path / "run" / "arms" / arm / CHECKPOINTS
        assert checkpoint.steps(saved) == [4, 2]
        checkpoint.discard(checkpoint.step_folder(saved, 4))
    run(f"resume={tmp_path / 'run'}", "cluster=ray", "cluster.engines=1")
    for arm in ARMS:
        assert outcome(tmp_path / "run" / "arms" / arm) == outcome(alone / "arms" / arm)
    rows = read.metrics(tmp_path / "run" / "arms" / "das")
    assert [row["cluster"]["engines"] for row in rows] == [2, 2, 1, 1]
