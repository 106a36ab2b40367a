"""Quantities over rows of metrics.jsonl, the claims and lines that several figures make of them, and numbers as text.

A pass is a target pass; the DAS paper calls it a verification round. A cycle is the papers' word for a target pass that
verifies a draft of a request.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from analysis.record import Record, Rows
from analysis.report import Line, Ordering, Size

PLOTTED = {"none": "verl", "das": "das", "das_unlimited": "das_unlimited"}  # arm -> its name in published.json


def total(rows: Rows, key: str) -> float:
    """Return a metric's sum over steps."""
    return float(sum(row[key] for row in rows))


def per(rows: Rows, key: str, by: str) -> float:
    """Return a metric per another, of their sums over steps; nan if the other is 0, as without drafts."""
    return total(rows, key) / total(rows, by) if total(rows, by) else float("nan")


def last_half(rows: Rows) -> Rows:
    """Return the second half of the steps, in which the drafter has a history of past responses."""
    return rows[len(rows) // 2 :]


def speedup(run: Record, arm: str, key: str = "rollout_s") -> float:
    """Return time of the arm `none` / time of this arm, as the median over steps. key: name of the metric, in seconds.

    A ratio of sums would depend too much on a few steps that were slowed by other work on the machine.
    """
    return median(plain[key] / drafting[key] for plain, drafting in zip(run["none"], run[arm], strict=True))


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def change(ratio: float) -> str:
    """Return a ratio of times as a signed percentage: 0.9 gives "-10.0 %"."""
    return f"{100 * (ratio - 1):+.1f} %"


def numbers(values: Sequence[float], digits: int = 2) -> str:
    """Return numbers as text, with slashes between them and a dash for a nan."""
    return " / ".join("-" if value != value else f"{value:.{digits}f}" for value in values)


def arrow(values: Sequence[float]) -> str:
    """Return numbers as text, with arrows between them."""
    return " → ".join(f"{value:.2f}" for value in values)


def named(values: Mapping[Any, float], form: str = "{} {:.2f}") -> str:
    """Return names with their numbers as text. form: how one of them is written."""
    return ", ".join(form.format(name, value) for name, value in values.items())


def listed(values: Sequence[Any], form: str = "{}") -> str:
    """Return values as text, with commas between them."""
    return ", ".join(form.format(value) for value in values)


def reduction(rows: Rows, others: Rows) -> float:
    """Return the share of rollout time that an arm saves against another: 1 - time / the other's time."""
    return 1 - total(rows, "rollout_s") / total(others, "rollout_s")


def plotted_reduction(paper: Mapping[str, Any], arm: str, other: str, last: int) -> float | None:
    """Return the share of rollout time that `arm` saves against `other` in the paper's curves over steps 1..last; None
    if a curve is shorter."""
    seconds, others = (paper["arms"][PLOTTED[name]]["seconds"][:last] for name in (arm, other))
    return float(1 - sum(seconds) / sum(others)) if len(seconds) == len(others) == last else None


def reduction_lines(
    run: Record, paper: Mapping[str, Any], last: int, claimed: str, arm: str = "das", other: str = "none", of: str = ""
) -> list[Line]:
    """Return lines with the reduction of rollout time: ours over all steps and from epoch 2 on, the paper's over steps
    1..last.

    claimed: the reduction that the paper's text claims. of: what the lines begin with.
    """
    rows, others = run[arm], run[other]
    plotted = plotted_reduction(paper, arm, other, last)
    what = f"{of}{arm} against {other}: reduction of rollout time"
    lines = [Line(what, "" if plotted is None else percent(plotted), claimed, engine=percent(reduction(rows, others)))]
    if max(row["epoch"] for row in rows):
        later = reduction([row for row in rows if row["epoch"]], [row for row in others if row["epoch"]])
        lines.append(Line(f"{of}the same from the second epoch on", engine=percent(later)))
    if other != "stock" and "stock" in run.arms:
        against_stock = percent(reduction(rows, run["stock"]))
        lines.append(Line(f"{of}{arm} against stock: reduction of rollout time", engine=against_stock))
    return lines


def saves_time(
    claim: str, run: Record, paper: Mapping[str, Any], last: int, arm: str = "das", other: str = "none"
) -> Ordering:
    """Return the claim that the rollouts of `arm` take less time than those of `other`, with the paper's reduction over
    its steps 1..last and ours over all steps."""
    ours, plotted = reduction(run[arm], run[other]), plotted_reduction(paper, arm, other, last)
    shorter = [row["rollout_s"] < its["rollout_s"] for row, its in zip(run[arm], run[other], strict=True)]
    evidence = f"shorter in {sum(shorter)} of {len(shorter)} steps"
    return Ordering(claim, ours > 0, evidence, Size(None if plotted is None else 100 * plotted, 100 * ours, " % less"))


def same_training(run: Record) -> Ordering:
    """Return the paper's claim about equal reward curves, in the strict form of equal bits, with its verdict."""
    return Ordering("training is the same with and without speculation", run.identical, run.identity)
