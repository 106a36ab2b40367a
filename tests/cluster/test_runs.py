"""Runs of run.py on a cluster are those on one engine in the process: comparison, evaluations, restarts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import EVALUATED, recorded_sampling
from scripts import run_script

from analysis import read
from das.drafter.saved import read_history
from experiments.harness.resume import CHECKPOINTS
from experiments.training import checkpoint

pytestmark = [
    pytest.mark.slow,
]
ON_RAY = ["cluster=ray", "cluster.engines=2", "wandb=off"]
EXACT = ("completions_digest", "rewards_digest", "loss", "grad_norm", "reward", "tokens", "length_mean")
ARMS = ("none", "das")


@pytest.fixture(scope="module")
def clustered(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparison `evaluated`, which has an engine in the process of each arm, on a cluster."""
    folder = tmp_path_factory.mktemp("clustered")
    run_script("run.py", f"policy.path={repetitive_policy}", *EVALUATED, *ON_RAY, f"hydra.run.dir={folder}")
    return folder


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


def test_a_comparison_is_the_same(evaluated: Path, clustered: Path) -> None:
    for arm in ARMS:
        assert outcome(evaluated / "arms" / arm) == outcome(clustered / "arms" / arm)
    of_engine, of_cluster = (recorded_sampling(run / "arms" / "das") for run in (evaluated, clustered))
    assert of_engine == of_cluster
    assert len(outcome(evaluated / "arms" / "das")["evaluations"]) == 4
    expected, found = (json.loads((folder / "result.json").read_text()) for folder in (evaluated, clustered))
    assert set(found) == {*expected, "cluster"}
    assert found["identical"] == expected["identical"]
    assert found["cluster"]["engines"] == 2
    assert set(found["cluster"]) == {"engines", "lost_requests", "restarts", "handover_us_per_token"}
    assert sum(row["accepted"] for row in read.metrics(clustered / "arms" / "das")) > 0


def test_the_exchanged_history_holds_the_recorded_distributions(clustered: Path) -> None:
    """So an engine that restarts drafts from them, and so does a run that begins with this history."""
    arm = clustered / "arms" / "das"
    recorded = {text for text, _ in recorded_sampling(arm)}
    texts = read_history(arm / "history.npz").texts
    assert len(texts) > 20
    assert all(text.remembered is not None and text.remembered.text() in recorded for text in texts)


def test_a_resumed_run_may_have_another_number_of_engines(evaluated: Path, clustered: Path, tmp_path: Path) -> None:
    shutil.copytree(clustered, tmp_path / "run")
    for arm in ARMS:
        saved = tmp_path / "run" / "arms" / arm / CHECKPOINTS
        assert checkpoint.steps(saved) == [5, 4]
        checkpoint.discard(checkpoint.step_folder(saved, 5))
    run_script("run.py", f"resume={tmp_path / 'run'}", "cluster=ray", "cluster.engines=1")
    for arm in ARMS:
        assert outcome(tmp_path / "run" / "arms" / arm) == outcome(evaluated / "arms" / arm)
    rows = read.metrics(tmp_path / "run" / "arms" / "das")
    assert [row["cluster"]["engines"] for row in rows] == [2, 2, 2, 2, 1]
