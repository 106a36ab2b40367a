"""Trainings that must be equal in all bits, with drafts and without, whole and resumed; and what else these runs show.

The runs are those of tests/runs.py. A run alone: pytest -k NAME.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import in_a_fork
from equal_runs import timeless
from runs import (
    STEPS,
    column,
    compared,
    error_of,
    evaluated,
    outcome,
    require_equal,
    sampled_again,
    train,
    train_script,
    unevaluated,
)

from analysis import read
from das.models.head_files import mtp_problem
from experiments.heads import files

pytestmark = pytest.mark.slow

Runs = Callable[[str], Path]
LAGS = [("das", 0), ("das_lag4", 4)]


@pytest.mark.parametrize("name", compared(on_cluster=False))
def test_equal(runs: Runs, name: str) -> None:
    require_equal(name, runs)


def test_tokens_are_those_of_the_weights_that_the_lag_asks_for(
    runs: Runs, in_process: Callable[..., Any], policies: Callable[[str], str]
) -> None:
    found = [(runs(name), lag) for name, lag in LAGS]
    at_once, later = again = in_process(sampled_again, policies("repetitive"), found)
    assert [outcome(folder)["tokens"] for folder, _ in found] == again
    assert at_once[0] == later[0], "sampled by the first weights"
    assert at_once[1] != later[1]


@pytest.mark.parametrize(("name", "lag"), LAGS)
def test_rows_say_which_weights_sampled(runs: Runs, name: str, lag: int) -> None:
    for row in read.metrics(runs(name)):
        step = row["step"] - 1
        assert row["lag"] == min(lag, step)
        used = {response["weights"] for response in read.rollout(runs(name), row["step"])}
        assert used == {max(0, step - lag)}
        assert row["exposed_s"] >= 0


@pytest.mark.nightly
def test_an_engine_beside_the_trainer_is_evaluated_and_replaced(runs: Runs) -> None:
    """It died between two steps. That no bit of the training changed is tested above."""
    rows = read.metrics(runs("beside_lag2"))
    assert sum(row["cluster"]["restarts"] for row in rows) == 1
    assert [step for step, *_ in evaluated(runs("beside_lag2"))] == [0, 3, 6]


# ---- scripts ----


@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=pytest.mark.nightly)])
def script(
    request: pytest.FixtureRequest, repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path, dict[str, Any]]:
    """A script of TRL with drafts: its lag, its folder, and what it computed."""
    folder, lag = tmp_path_factory.mktemp("script"), request.param
    return lag, folder, in_a_fork(train_script, repetitive_policy, folder, lag)


def test_a_script_with_drafts_is_as_the_harness(
    script: tuple[int, Path, dict[str, Any]], in_process: Callable[..., Any], repetitive_policy: str, tmp_path: Path
) -> None:
    """With evaluations between steps, which the harness's run has not: they leave a training as it is. Scripts without
    drafts are in test_trainers.py."""
    lag, _, das = script
    in_process(
        train, "das", repetitive_policy, tmp_path, f"trainer.lag={lag}", "trainer.trim_padding=false"
    )  # TRL's bits
    harness = outcome(tmp_path)
    for what in ("tokens", "losses", "weights"):
        assert das[what] == (harness[what] if what in harness else harness["final"]["final_weights"]), what
    assert min(accepted for _, accepted in das["drafted"][1:]) > 0
    assert das["evaluations"] == STEPS // 2
    drafted = [[row["drafted"], row["accepted"]] for row in read.metrics(tmp_path)]
    assert lag or das["drafted"] == drafted  # in another process it is chance which requests share a pass


@pytest.mark.nightly
def test_a_script_is_resumed_amid_an_epoch(script: tuple[int, Path, dict[str, Any]], repetitive_policy: str) -> None:
    lag, folder, das = script
    resumed = in_a_fork(train_script, repetitive_policy, folder, lag, 2)
    assert resumed["tokens"] == das["tokens"][2:]
    assert [resumed[what] for what in ("losses", "weights")] == [das[what] for what in ("losses", "weights")]


# ---- evaluations ----


def test_a_training_leaves_the_same_files_without_evaluations(runs: Runs) -> None:
    das, plain = runs("das_evaluated"), runs("das")
    assert timeless(unevaluated(das)) == timeless(read.metrics(plain))
    assert [step for step, *_ in evaluated(das)] == [0, 3, 6]
    step = Path("checkpoints") / f"step_0000{STEPS}"
    for name in ("history.npz", *(step / file for file in ("learned.npz", "generation.npz"))):
        saved, other = (np.load(folder / name) for folder in (das, plain))
        assert all(np.array_equal(saved[key], other[key]) for key in other.files)
    for name in ("rng_state.pth", "optimizer.pt", "trainer_state.json"):
        assert (das / step / name).read_bytes() == (plain / step / name).read_bytes(), name


# ---- drafters with weights of their own ----


@pytest.mark.nightly
def test_a_draft_head_learns_in_the_run(runs: Runs, shared: Path) -> None:
    for name in ("none_heads", "eagle3_frozen", "eagle3_online", "draft_model"):
        learns = name == "eagle3_online"
        assert ("head" in read.final(runs(name))) == learns
        assert any("head_train_s" in row for row in read.metrics(runs(name))) == learns
    assert any(row["head_texts"] and row["head_loss"] > 0 for row in read.metrics(runs("eagle3_online")))
    # The policy moves fast here, and a head that follows it drafts better than the one that stays.
    per_pass = {
        name: sum(column(runs(name), "tokens")) / sum(column(runs(name), "passes"))
        for name in ("eagle3_online", "eagle3_frozen")
    }
    assert per_pass["eagle3_online"] > per_pass["eagle3_frozen"]
    configs = [json.loads(path.read_text()) for path in (shared / "cache" / "heads").glob("*/config.json")]
    layers = [each["eagle_config"]["eagle_aux_hidden_state_layer_ids"] for each in configs]
    assert layers.count([1, 2, 3]) == 1  # the arms share it; the other tests' policy has fewer layers


@pytest.mark.nightly
def test_checkpoints_of_a_policy_with_an_mtp_layer_are_whole_policies(
    runs: Runs, policies: Callable[[str], str]
) -> None:
    """transformers saves them without the layer, which is put back."""
    for name in ("none_mtp", "mtp"):
        saved = runs(name) / "checkpoints" / "step_00004"
        assert mtp_problem(str(saved), 1) == ""
        assert (saved / files.MTP_WEIGHTS).read_bytes() == (Path(policies("mtp")) / files.MTP_WEIGHTS).read_bytes()


# ---- what stops a run ----


def test_weights_that_do_not_arrive_stop_the_run_of_stock(
    in_process: Callable[..., Any], tiny_policy: str, tmp_path: Path
) -> None:
    """Those of other arms: test_trainers.py, test_broken_runs.py."""
    assert "did not reach the engine" in in_process(error_of, "lost weights", "stock", tiny_policy, tmp_path)


def test_a_prefix_cache_of_older_weights_stops_the_run(
    in_process: Callable[..., Any], tiny_policy: str, tmp_path: Path
) -> None:
    longer = ["trainer.max_completion_length=140", "engine.max_model_len=288"]  # the cache holds blocks of 128 tokens
    error = in_process(error_of, "older prefixes", "none", tiny_policy, tmp_path, *longer)
    assert re.search(r"step 1: the engine's prefix cache holds \d+ blocks of older weights", error)


def test_a_loss_that_is_not_finite_stops_the_run_before_a_checkpoint(
    in_process: Callable[..., Any], tiny_policy: str, tmp_path: Path
) -> None:
    error = in_process(error_of, "nan", "none", tiny_policy, tmp_path)
    assert error.startswith("TrainingDiverged: step 3: loss nan, gradient norm nan: the policy is lost")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_00001", "step_00002"]
    assert column(tmp_path, "step") == [1, 2]
