"""The numbers of a rollout that go into metrics.jsonl (docs/reference.md explains the names)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from das.engine.rollouts.rollout import Rollout

# Groups of responses by length, as quantiles of the rollout's lengths.
CLASSES = {"short": (0.0, 0.5), "medium": (0.5, 0.8), "long": (0.8, 1.0)}


def rollout_row(rollout: Rollout) -> dict[str, Any]:
    """Returns a rollout's numbers, by their names."""
    lengths = [len(each.tokens) for each in rollout.finished]
    report, accepted = rollout.report, rollout.accepted
    row: dict[str, Any] = {
        "rollout_s": rollout.rollout_s,
        "tokens": rollout.tokens,
        "passes": report.passes,
        "tokens_per_pass": rollout.tokens / max(1, report.passes),
        "drafted": report.drafted,
        "accepted": accepted,
        "draft_s": report.draft_s,
        "draft_share": report.draft_s / rollout.rollout_s,
        "draft_rounds": report.draft_rounds,
        "decode_steps": report.decode_steps,
        "tail_steps": report.tail_steps,
        "length_mean": float(np.mean(lengths)),
        "length_median": float(np.median(lengths)),
        "length_max": int(np.max(lengths)),
        "longest_over_mean": longest_over_mean([str(each.problem) for each in rollout.finished], lengths),
        "history_tokens": report.history_tokens,
        "wasted": report.drafted - accepted,
    }
    if report.draft_passes:
        row |= {key: getattr(report, key) for key in ("draft_passes", "draft_rows", "draft_pass_s", "requantize_s")}
    if report.draft_rounds:
        row["accepted_per_round"] = accepted / report.draft_rounds
    if report.cluster is not None:
        row["cluster"] = report.cluster.plain()
    return row | by_class(rollout) | prediction_errors(rollout) | {"alarms": list(report.alarms)}


def longest_over_mean(problems: Sequence[str], lengths: Sequence[int]) -> float:
    """Returns the length of a problem's longest response, divided by the mean length of its responses: the median of
    this quotient over all problems."""
    by_problem: dict[str, list[int]] = {}
    for problem, length in zip(problems, lengths, strict=True):
        by_problem.setdefault(problem, []).append(length)
    return float(np.median([max(siblings) / (np.mean(siblings) or 1) for siblings in by_problem.values()]))


def by_class(rollout: Rollout) -> dict[str, int]:
    """Returns the drafted, accepted and wasted tokens of three groups of responses: the shorter half, the longest
    fifth, and those between them."""
    lengths = np.array([len(each.tokens) for each in rollout.finished])
    num_drafted = np.array([each.drafted for each in rollout.finished])
    num_accepted = np.array([each.accepted for each in rollout.finished])
    rank = np.argsort(np.argsort(lengths, kind="stable"), kind="stable") / len(lengths)
    row: dict[str, int] = {}
    for name, (low, high) in CLASSES.items():
        in_class = (rank >= low) & (rank < high)
        row[f"drafted_{name}"] = int(num_drafted[in_class].sum())
        row[f"accepted_{name}"] = int(num_accepted[in_class].sum())
        row[f"wasted_{name}"] = row[f"drafted_{name}"] - row[f"accepted_{name}"]
    return row


def prediction_errors(rollout: Rollout) -> dict[str, float]:
    """Returns the errors of the engine's predictions: calibration_error, length_error, pass_time_error
    (docs/reference.md).

    There is no entry for a quantity that was not predicted.
    """
    row: dict[str, float] = {}
    if rollout.report.calibration_error is not None:
        row["calibration_error"] = rollout.report.calibration_error
    length_pairs = [
        (each.predicted_length, len(each.tokens)) for each in rollout.finished if each.predicted_length is not None
    ]
    if length_pairs:
        predicted, actual = np.array(length_pairs).T
        row["length_error"] = float(np.abs(predicted - actual).sum() / max(1, actual.sum()))
    expected_s = np.array(rollout.report.pass_predicted_s, float)
    measured_s = np.array(rollout.report.pass_measured_s, float)
    usable = np.isfinite(expected_s)
    if usable.any():
        row["pass_time_error"] = float(np.abs(expected_s[usable] / measured_s[usable] - 1).mean())
    return row
