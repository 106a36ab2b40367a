"""What kind of rollouts a comparison was made on, from run folders whose numbers are known."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import steps_on_disk

from analysis.regime import length_figures, regime, regime_lines, regime_note
from experiments.run.files import add_rows
from experiments.run.run_folder import responses_file

# Lengths of the responses of problems a and b: a step is an epoch.
LENGTHS = [[[100, 100, 100, 700], [50, 60, 70, 420]], [[80, 80, 80, 560], [40, 48, 56, 336]]]


def of_length(problem: str, length: int) -> dict[str, Any]:
    return {"problem_id": problem, "response_ids": [1] * length}


def write_arm(folder: Path, **columns: list[Any]) -> None:
    """An arm's folder. columns: values of further metrics, one a step."""
    responses = [
        [of_length(p, n) for p, lengths in zip("ab", groups, strict=True) for n in lengths] for groups in LENGTHS
    ]
    rows = []
    for step, groups in enumerate(LENGTHS, 1):
        row = {"step": step, "epoch": step - 1, "tokens": sum(map(sum, groups)), "drafted": 0, "reward": step / 4}
        rows.append(row | {name: values[step - 1] for name, values in columns.items()})
    steps_on_disk.write_arm(folder, rows, responses)


def test_figures(tmp_path: Path) -> None:
    times = {"rollout_s": [1.0, 2.0], "step_s": [4.0, 2.0], "decode_steps": [700, 560], "tail_steps": [600, 30]}
    write_arm(tmp_path / "arms" / "none", **times, entropy=[0.5, 0.25])
    write_arm(tmp_path / "arms" / "suffix", drafted=[9, 9], accepted=[5, 5], draft_rounds=[5, 5])
    write_arm(tmp_path / "arms" / "das", drafted=[90, 90], accepted=[30, 40], draft_rounds=[20, 10])
    figures = regime(tmp_path, ["none", "suffix", "das"])
    first, second = figures["by_epoch"]
    assert first["median_length"] == 100  # of 50 60 70 100 100 100 420 700
    assert first["longest"] == 700
    assert first["longest_over_median"] == 7
    assert first["p99_over_median"] == pytest.approx(6.804)
    assert first["longest_over_mean"] == pytest.approx((700 / 250 + 420 / 150) / 2)
    assert [epoch["entropy"] for epoch in (first, second)] == [0.5, 0.25]
    assert [epoch["accepted_per_round"] for epoch in (first, second)] == [1.5, 4.0]  # das, though suffix comes first
    assert [epoch["reward"] for epoch in (first, second)] == [0.25, 0.5]
    assert figures["accepted_by"] == "das"
    assert figures["rollout_share_none"] == 0.5
    assert figures["length_change"] == pytest.approx(-0.2)
    assert figures["tail_share"] == 0.5
    assert regime(tmp_path, ["none", "suffix"])["by_epoch"][0]["accepted_per_round"] == 1
    assert [line[0] for line in regime_lines(figures)] == ["0", "1"]
    table = regime_note(figures)
    assert "without drafts, rollouts" in table
    assert "in arm das, rollouts" in regime_note(regime(tmp_path, ["das", "none"]) | {"rollout_share_none": 0.5})
    assert "rollouts take 50% of a step, and 50% of the passes" in table
    assert "-20%" in table


def test_steps_without_a_reward_are_left_out_of_the_mean(tmp_path: Path) -> None:
    """A reward function may abstain from all responses of a step."""
    write_arm(tmp_path / "arms" / "none", reward=[None, 0.5], epoch=[0, 0])
    write_arm(tmp_path / "arms" / "das", reward=[None, None], epoch=[0, 1])
    assert [epoch["reward"] for epoch in regime(tmp_path, ["none"])["by_epoch"]] == [0.5]
    figures = regime(tmp_path, ["das"])
    assert [epoch["reward"] for epoch in figures["by_epoch"]] == [None, None]
    assert [line[-1] for line in regime_lines(figures)] == ["-", "-"]


def test_the_spread_within_problems_is_a_median() -> None:
    groups = [[100, 300], [100, 100], [10, 10, 10, 370]]  # longest over mean: 1.5, 1, 3.7
    assert length_figures(groups)["longest_over_mean"] == 1.5


def test_the_change_of_length_ignores_a_part_of_an_epoch(tmp_path: Path) -> None:
    write_arm(tmp_path / "arms" / "none")
    none = tmp_path / "arms" / "none"
    responses_file(none, 3).write_bytes(gzip.compress(steps_on_disk.json_lines([of_length("a", 9)]).encode()))
    add_rows(none / "metrics.jsonl", [{"step": 3, "epoch": 2, "tokens": 9, "drafted": 0, "reward": 0}])
    figures = regime(tmp_path, ["none"])
    assert len(figures["by_epoch"]) == 3
    assert figures["length_change"] == pytest.approx(-0.2)


def test_a_run_that_recorded_less_and_drafted_nothing(tmp_path: Path) -> None:
    """Runs of earlier versions have no tail_steps; TRL may log no entropy."""
    write_arm(tmp_path / "arms" / "none", rollout_s=[1.0, 2.0], step_s=[4.0, 2.0], entropy=[None, None])
    figures = regime(tmp_path, ["none"])
    assert figures["tail_share"] is figures["accepted_by"] is figures["by_epoch"][0]["accepted_per_round"] is None
    assert figures["by_epoch"][0]["entropy"] is None
    assert "- of the passes" in regime_note(figures)
