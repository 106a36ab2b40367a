"""Rollouts of several ranks are merged into one."""

from dataclasses import replace
from typing import Any

from das.engine.rollouts.report import ClusterReport, Finished, RolloutReport
from das.engine.rollouts.rollout import Rollout
from das.trl.engines.cluster import divided
from experiments.run.run_folder import rollout_row
from experiments.training.trainer import merged


def rollout(rollout_s: float, lengths: list[int], drafted: int, alarms: list[str]) -> Rollout:
    report = RolloutReport(
        passes=sum(lengths) - drafted,
        drafted=2 * drafted,
        accepted=drafted,
        draft_s=rollout_s / 10,
        draft_rounds=drafted,
        draft_passes=3 * drafted,
        draft_rows=4 * drafted,
        draft_pass_s=rollout_s / 20,
        decode_steps=max(lengths),
        tail_steps=max(lengths) - 2,
        history_tokens=100,
        step_time_s=[rollout_s],
        alarms=alarms,
    )
    own = drafted // len(lengths)
    emitted = [[own + 1] + [1] * (n - own - 1) for n in lengths]
    finished = [
        Finished(n - own, 2 * own, problem=f"p{n}", tokens=[n] * n, finish_reason="stop", emitted=of_passes)
        for n, of_passes in zip(lengths, emitted, strict=True)
    ]
    return Rollout(3, finished, rollout_s, report)


def reporting(rollout: Rollout, **values: Any) -> Rollout:
    return replace(rollout, report=replace(rollout.report, **values))


def test_counts_are_summed_and_times_are_the_slowest_ranks() -> None:
    slow, fast = rollout(4.0, [5, 7], 2, ["stale"]), rollout(1.0, [3, 9], 4, [])
    assert merged([slow]) is slow
    slow, fast = reporting(slow, calibration_error=0.1), reporting(fast, calibration_error=0.2)
    both = merged([fast, slow])
    assert both.report.calibration_error == merged([slow, fast]).report.calibration_error == 0.2
    assert [each.problem for each in both.finished] == ["p3", "p9", "p5", "p7"]
    assert [len(response) for response in both.responses] == [3, 9, 5, 7]
    assert [each.rank for each in both.finished] == [0, 0, 1, 1]
    assert both.report.step_time_s == [4.0]
    row = rollout_row(both)
    sums = {"tokens": 24, "drafted": 12, "accepted": 6, "draft_passes": 18, "draft_rows": 24, "decode_steps": 16}
    sums |= {"tail_steps": 12, "history_tokens": 200}
    others = {"rollout_s": 4.0, "draft_share": 0.1, "accepted_per_round": 1.0, "alarms": ["rank 1: stale"]}
    assert {name: row[name] for name in sums | others} == sums | others


def test_a_rollout_that_was_made_for_all_ranks_is_merged_to_itself() -> None:
    cluster = ClusterReport(2, 0, 0, 0.5, 100, {})
    whole = reporting(rollout(4.0, [5, 7, 3, 9], 4, []), cluster=cluster, calibration_error=0.25)
    parts = divided(whole, [1, 3])
    assert [[each.problem for each in part.finished] for part in parts] == [["p5"], ["p7", "p3", "p9"]]
    assert [part.report.passes for part in parts] == [4, 16]
    both = merged(parts)
    assert [each.rank for each in both.finished] == [0, 1, 1, 1]
    assert replace(both, finished=[replace(each, rank=None) for each in both.finished]) == whole
    assert rollout_row(both) == rollout_row(whole)
