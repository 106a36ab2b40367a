"""Curves of accuracy from rows of metrics.jsonl."""

from typing import Any

from analysis.evaluations import curves, points


def row(step: int, **pass_at_k: float) -> dict[str, Any]:
    values = {k.removeprefix("k"): value for k, value in pass_at_k.items()}
    bounds = {k: (value - 0.1, value + 0.1) for k, value in values.items()}
    found = {"step": step, "pass_at_1": values["1"], "pass_at_k": values, "interval": bounds, "eval_s": 1.0}
    return {"step": step, "eval": [found]}


def test_a_run_resumed_with_another_k_keeps_the_curves_that_all_its_evaluations_have() -> None:
    rows = [row(1, k1=0.5, k2=0.6, k4=0.7), row(2, k1=0.6, k2=0.7), {"step": 3}, row(4, k1=0.7, k2=0.8, k8=0.9)]
    found = curves(rows)
    assert found["step"] == [1, 2, 4]
    assert found["pass_at_k"] == {"1": [0.5, 0.6, 0.7], "2": [0.6, 0.7, 0.8]}
    assert found["interval"].keys() == {"1", "2"}
    assert points(rows, "eval/pass_at_k") == [(1, 0.6), (2, 0.7), (4, 0.8)]
    assert points(rows, "eval/pass_at_1") == [(1, 0.5), (2, 0.6), (4, 0.7)]


def test_a_run_without_evaluations_has_empty_curves() -> None:
    assert curves([{"step": 1}])["step"] == points([{"step": 1}], "eval/pass_at_k") == []
