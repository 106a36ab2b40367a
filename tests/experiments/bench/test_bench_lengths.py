"""The measures of task=bench_lengths, on lengths whose answers are known."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.bench.lengths import class_measures, evaluate, made_up_lengths, trace_lengths


def test_measures_of_known_answers() -> None:
    truth = np.array([0, 1, 2, 2])
    sure = np.eye(3)[[0, 1, 2, 1]]
    assert class_measures(sure, truth) == pytest.approx({"accuracy": 0.75, "brier": 0.5, "calibration": 0.25})
    assert class_measures(np.eye(3)[truth], truth) == pytest.approx({"accuracy": 1, "brier": 0, "calibration": 0})
    half = np.array([[0.0, 0.5, 0.5]] * 4)
    assert class_measures(half, truth)["calibration"] == pytest.approx(0)  # half of them were Long
    assert class_measures(half, truth)["accuracy"] == pytest.approx(0.5)  # ties go to the longer class


def test_a_problem_that_repeats_itself_is_predicted() -> None:
    lengths = {str(i): [50 + 30 * i] * 16 for i in range(10)}
    result = evaluate(lengths, samples=8, quantiles=(0.5, 0.8), ema_weight=0.3)
    assert result["ema"]["accuracy"] == 1
    assert result["ema"]["remaining"] == 0
    assert result["hazard"]["accuracy"] > 0.9
    assert result["hazard"]["remaining"] < 0.1
    assert result["hazard"]["inside"] > 0.9


def test_hazard_states_its_own_uncertainty_on_generated_lengths() -> None:
    result = evaluate(made_up_lengths(seed=1), samples=8, quantiles=(0.5, 0.8), ema_weight=0.3)
    assert 0.75 < result["hazard"]["inside"] < 0.88
    assert result["hazard"]["brier"] < 0.75 * result["ema"]["brier"]
    assert result["hazard"]["remaining"] < result["ema"]["remaining"]


def test_traces_give_lengths(tmp_path: Path) -> None:
    rows = [
        {"problem_id": "a", "run": "x", "response_ids": [1, 2, 3]},
        {"problem_id": "a", "run": "data", "response_ids": [1]},
        {"problem_id": "b", "run": "x", "response": "four" * 5},
        {"problem_id": "b", "run": "x", "response": "four", "n_tok": 7},
        {"problem_id": "c", "run": "prob/alpha_1p0", "response": "steered"},
    ]
    path = tmp_path / "some.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    assert trace_lengths(path) == {"a": [3], "b": [5, 7]}
