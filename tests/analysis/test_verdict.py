"""The verdict of a comparison, while it runs and at its end."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.arms import SHORT_KEY, WIDTH, SoFar, aligned, boxed, table, verdict_lines
from analysis.figures import points
from analysis.metrics import METRICS, cluster_result, curves, summarised, visits

DIGESTS = {"completions_digest": "a", "rewards_digest": "b", "loss": 0.1, "grad_norm": 0.2}


def row(arm: str, step: int, rollout_s: float, **other: Any) -> dict[str, Any]:
    return {"arm": arm, "step": step, "rollout_s": rollout_s, **DIGESTS, **other}


def test_a_line_after_the_last_arm_of_each_step() -> None:
    so_far = SoFar(["none", "stock", "das"], ["stock"], 16)
    assert so_far.add(row("none", 1, 2.0)) is None
    assert so_far.add(row("das", 1, 1.0)) is None
    line = so_far.add(row("stock", 1, 1.8, completions_digest="other"))
    assert line == "identical so far: yes (16 responses) · stock 0.90, das 0.50 of none"
    for name, loss in (("none", 0.1), ("stock", 0.1), ("das", 0.2)):
        line = so_far.add(row(name, 2, 2.0, loss=loss))
    assert line == "identical so far: NO, das differs since step 2 · stock 0.95, das 0.75 of none"
    for name in ("none", "stock", "das"):
        line = so_far.add(row(name, 3, 2.0))
    assert line is not None
    assert "NO, das differs since step 2" in line, "a difference is not forgotten"


def test_table_and_box_fit_the_terminal_whatever_the_names() -> None:
    kept = (Path(__file__).parent / "golden" / "result.json").read_text()
    result = json.loads(kept.replace("self_draft_adaptive", "remember_distributions_and_more_of_everything"))
    lines = verdict_lines(result)
    text = "\n".join([aligned(table(result, "short"), WIDTH), SHORT_KEY, boxed("verdict", lines)])
    assert max(map(len, text.splitlines())) <= WIDTH == 100


def test_steps_without_a_reward_leave_its_mean() -> None:
    """The user's function may abstain from all responses of a step, or of all steps."""
    some = [
        {**dict.fromkeys((metric.name for metric in METRICS), 1.0), "epoch": epoch, "reward": reward}
        for epoch, reward in ((1, None), (2, 0.25), (3, 0.75), (4, None))
    ]
    none = [{**row, "reward": None} for row in some]
    result = {"arms": {"some": summarised(some), "none": summarised(none)}, "ratio_to_none": {}}
    reward = result["arms"]["some"]["reward"]
    assert (reward["n"], reward["mean"], reward["first_visit"], reward["last_visit"]) == (2, 0.5, None, None)
    assert [line[-1] for line in table(result, "short")[1:]] == ["- → -"] * 2
    assert "- → -" in table(result, "comparison")[1]
    assert summarised(some[1:3])["reward"]["last_visit"] == 0.75


def test_a_cluster_counts_its_lost_requests_and_means_its_handover_over_tokens() -> None:
    counts = {"engines": 2, "lost_requests": 3, "restarts": 0, "handover_us_per_token": 1.0}
    other = counts | {"engines": 3, "restarts": 1, "handover_us_per_token": 2.0}
    found = cluster_result([{"tokens": 100, "cluster": counts}, {"tokens": 300, "cluster": other}])
    assert found["cluster"] == {"engines": 3, "lost_requests": 6, "restarts": 1, "handover_us_per_token": 1.75}
    assert cluster_result([{"tokens": 5}]) == {}


def test_a_run_resumed_with_another_k_keeps_the_curves_that_all_its_evaluations_have() -> None:
    def evaluated(step: int, *ks: str) -> dict[str, Any]:
        values, bounds = dict.fromkeys(ks, 0.5), dict.fromkeys(ks, (0.4, 0.6))
        return {
            "step": step,
            "eval": [{"step": step, "pass_at_1": 0.5, "pass_at_k": values, "interval": bounds, "eval_s": 1.0}],
        }

    rows = [evaluated(1, "1", "2", "4"), evaluated(2, "1", "2"), {"step": 3}, evaluated(4, "1", "2", "8")]
    found = curves(rows)
    assert (found["step"], [*found["pass_at_k"]], [*found["interval"]]) == ([1, 2, 4], ["1", "2"], ["1", "2"])
    assert points(rows, "eval/pass_at_k") == [(1, 0.5), (2, 0.5), (4, 0.5)]
    assert curves([{"step": 1}])["step"] == points([{"step": 1}], "eval/pass_at_k") == []


def test_rewards_of_the_first_and_the_last_visit_are_of_the_same_problems() -> None:
    """The fourth epoch has a step alone, whose problems the others have too, but not they alone."""
    rewards = (0.2, 0.4, 0.3, 0.3, 0.6, 0.8, 0.1)
    rows = [{"epoch": 1 + i // 2, "reward": reward} for i, reward in enumerate(rewards)]
    assert visits(rows, "reward") == {"first_visit": pytest.approx(0.3), "last_visit": pytest.approx(0.7)}
    assert visits(rows[:2], "reward") == {}
