"""The verdict of a comparison, while it runs and at its end."""

from typing import Any

import pytest

from analysis.arms import SHORT_KEY, aligned, full_table, short_table
from analysis.metrics import METRICS, summarised, visits
from analysis.verdict import WIDTH, SoFar, boxed, verdict_lines

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


def test_an_arm_that_does_not_train_has_no_losses_to_compare() -> None:
    so_far = SoFar(["none", "das"], [], 8, once=True)
    so_far.add(row("none", 1, 2.0))
    line = so_far.add({key: value for key, value in row("das", 1, 1.0).items() if key not in ("loss", "grad_norm")})
    assert line == "identical so far: yes (8 responses) · das 0.50 of none"


def test_table_and_box_fit_the_terminal_whatever_the_names() -> None:
    long = "remember_distributions_and_more_of_everything"
    of_arm = {"mean": 10.123, "std": 1.456, "n": 48, "overall": 3.5, "first_visit": 0.5, "last_visit": 0.7}
    arm = {key: of_arm for key in ("rollout_s", "step_s", "tokens_per_pass", "drafted", "accepted", "reward")}
    times = {"overall": 0.459, "from_second_epoch": 0.434}
    ratios = {"rollout_s": times, "step_s": times}
    same = dict.fromkeys(("completions", "rewards", "losses", "grad_norms", "final_weights", "optimizer"), True)
    result = {
        "baseline": "none",
        "arms": {"none": arm, long: arm},
        "ratio_to_none": {long: ratios},
        "ratio_to_stock": {"none": ratios, long: ratios},
        "identical": {long: {**same, "first_difference": None}},
    }
    lines = verdict_lines(result)
    assert lines[0] == "Rollouts: 8 min 6 s → 8 min 6 s. Whole run: 8 min 6 s → 8 min 6 s. Same tokens, same weights."
    assert lines[1].startswith(f"identical: yes  ({long} against none")
    text = "\n".join([aligned(short_table(result), WIDTH), SHORT_KEY, boxed("verdict", lines)])
    assert max(map(len, text.splitlines())) <= WIDTH == 100
    assert "8.10" in text


def test_the_verdict_begins_with_times_and_with_what_is_the_same() -> None:
    def of_steps(mean: float) -> dict[str, dict[str, float]]:
        return {key: {"n": 48, "mean": mean} for key in ("rollout_s", "step_s")}

    equal = {"completions": True, "final_weights": True, "first_difference": None}
    result: dict[str, Any] = {
        "baseline": "none",
        "arms": {"none": of_steps(6.0), "das": of_steps(2.05), "stock": of_steps(0.2)},
        "ratio_to_none": {key: {"rollout_s": {}, "step_s": {}} for key in ("das", "stock")},
        "identical": {"das": equal},
    }
    das, stock, *_ = verdict_lines(result)
    assert (
        das == "das · Rollouts: 4 min 48 s → 1 min 38 s. Whole run: 4 min 48 s → 1 min 38 s. Same tokens, same weights."
    )
    assert stock.startswith("stock · Rollouts: 4 min 48 s → 9.6 s. ")
    assert stock.endswith("Other tokens, as this arm samples its own.")
    result["identical"]["das"] = equal | {"completions": False, "first_difference": 3}
    assert verdict_lines(result)[0].endswith("NOT the same results as none.")
    result |= {"trained": "first", "identical": {"das": equal}, "ratio_to_none": {"das": {"rollout_s": {}}}}
    assert verdict_lines(result)[0] == "Rollouts: 4 min 48 s → 1 min 38 s. Same tokens."


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
    assert [line[-1] for line in short_table(result)[1:]] == ["- → -"] * 2
    assert "- → -" in full_table(result)[1]
    assert summarised(some[1:3])["reward"]["last_visit"] == 0.75


def test_rewards_of_the_first_and_the_last_visit_are_of_the_same_problems() -> None:
    """The fourth epoch has a step alone, whose problems the others have too, but not they alone."""
    rewards = (0.2, 0.4, 0.3, 0.3, 0.6, 0.8, 0.1)
    rows = [{"epoch": 1 + i // 2, "reward": reward} for i, reward in enumerate(rewards)]
    assert visits(rows, "reward") == {"first_visit": pytest.approx(0.3), "last_visit": pytest.approx(0.7)}
    assert visits(rows[:2], "reward") == {}
