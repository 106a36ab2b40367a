"""Describe the rollouts of a comparison: the lengths of responses, how unequal these are, and how predictable text is.

Drafts gain most if a few responses are much longer than the others and repeat text. So a ratio of times means little
without these statistics. docs/reference.md defines them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read

Rows = Sequence[Mapping[str, Any]]


def regime(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return statistics of a comparison: over the whole run and, in `by_epoch`, for each epoch. names: its arms, the
    baseline first.

    Lengths, entropy, rewards and shares are the baseline's. Acceptance is that of the arm das, or else of the first arm
    that drafted. A statistic that the run did not record is None.
    """
    rows = {name: read.metrics(folder / "arms" / name) for name in names}
    baseline = rows[names[0]]
    drafting = rows[arm] if (arm := drafting_arm(rows)) else []
    lengths = {row["step"]: siblings_lengths(read.rollout(folder / "arms" / names[0], row["step"])) for row in baseline}
    by_epoch, means, sizes = [], [], []
    for epoch in sorted({row["epoch"] for row in baseline}):
        own = [row for row in baseline if row["epoch"] == epoch]
        groups = [group for row in own for group in lengths[row["step"]]]
        sizes.append(len(groups))
        means.append(np.mean([length for group in groups for length in group]))
        by_epoch.append(
            {
                "epoch": epoch,
                **length_figures(groups),
                "entropy": ratio_of_sums(
                    [{**row, "nats": row["entropy"] * row["tokens"]} for row in own if row.get("entropy") is not None],
                    "nats",
                    "tokens",
                ),
                "accepted_per_round": ratio_of_sums(
                    [row for row in drafting if row["epoch"] == epoch], "accepted", "draft_rounds"
                ),
                "reward": mean_of([row["reward"] for row in own]),
            }
        )
    complete = [mean for mean, size in zip(means, sizes, strict=True) if size == max(sizes)]
    everything = length_figures([group for groups in lengths.values() for group in groups])
    return {
        "by_epoch": by_epoch,
        "accepted_by": arm,
        "baseline": names[0],
        "p99_over_median": everything["p99_over_median"],
        "rollout_share_none": ratio_of_sums(baseline, "rollout_s", "step_s"),
        "length_change": float(complete[-1] / complete[0] - 1),  # without incomplete epochs
        "tail_share": ratio_of_sums(baseline, "tail_steps", "decode_steps"),
    }


def drafting_arm(rows: Mapping[str, Rows]) -> str | None:
    """Return the arm whose acceptance the report has: das, or else the first arm that drafted; None if no arm
    drafted."""
    drafted = [name for name, own in rows.items() if any(row["drafted"] for row in own)]
    return "das" if "das" in drafted else next(iter(drafted), None)


def siblings_lengths(responses: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return the lengths of a rollout's responses in tokens, one list for each problem."""
    groups: dict[str, list[int]] = {}
    for row in responses:
        groups.setdefault(str(row["problem_id"]), []).append(len(row["response_ids"]))
    return list(groups.values())


def length_figures(groups: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return statistics of response lengths in tokens. groups: the lengths of the responses to each problem
    (siblings)."""
    lengths = [length for group in groups for length in group]
    median, p99 = (float(value) for value in np.percentile(lengths, [50, 99]))
    return {
        "median_length": median,
        "p99_over_median": p99 / median,
        "longest_over_median": max(lengths) / median,
        "longest": max(lengths),
        "longest_over_mean": float(np.median([max(group) / np.mean(group) for group in groups])),
    }


def ratio_of_sums(rows: Rows, numerator: str, denominator: str) -> float | None:
    """Return the sum of one metric divided by the sum of another; None if the divisor is 0 or not recorded."""
    if any(key not in row for row in rows for key in (numerator, denominator)):
        return None
    below = sum(row[denominator] for row in rows)
    return float(sum(row[numerator] for row in rows) / below) if below else None


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if all are."""
    given = [value for value in values if value is not None]
    return float(np.mean(given)) if given else None


MOST_LINES = 12  # the most epochs that the table shows; it leaves some out if there are more
COLUMNS = {  # header of the table -> the figure that the column shows, and its format
    "median length": ("median_length", ".0f"),
    "p99/median": ("p99_over_median", ".2f"),
    "longest/median": ("longest_over_median", ".2f"),
    "longest": ("longest", ".0f"),
    "longest/mean": ("longest_over_mean", ".2f"),
    "entropy": ("entropy", ".3f"),
    "accepted a round": ("accepted_per_round", ".2f"),
    "reward": ("reward", ".3f"),
}


def regime_lines(figures: Mapping[str, Any]) -> list[list[str]]:
    """Return the lines of a table with a row for each epoch, for the columns of COLUMNS after the epoch. figures: the
    result of `regime`."""
    epochs = figures["by_epoch"]
    return [
        [str(epochs[i]["epoch"]), *(shown(epochs[i][key], form) for key, form in COLUMNS.values())]
        for i in sorted({round(i) for i in np.linspace(0, len(epochs) - 1, MOST_LINES)})
    ]


def regime_note(figures: Mapping[str, Any]) -> str:
    """Return a sentence about the whole run. figures: the result of `regime`."""
    where = "without drafts" if figures["baseline"] == "none" else f"in arm {figures['baseline']}"
    return (
        f"p99/median of the run {shown(figures['p99_over_median'], '.2f')}; mean length of the last "
        f"complete epoch over the first {shown(figures['length_change'], '+.0%')}; {where}, rollouts take "
        f"{shown(figures['rollout_share_none'], '.0%')} of a step, and {shown(figures['tail_share'], '.0%')} of the "
        "passes have at most 4 live requests"
    )


def shown(value: float | None, form: str) -> str:
    """Return the formatted value; "-" for None."""
    return "-" if value is None else format(value, form)
