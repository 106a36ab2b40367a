"""Read the accuracy on held-out problems during a training, from the entry `eval` of rows of metrics.jsonl."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]
PREFIX = "eval/"  # prefix of the names of metrics in W&B
EXACT = ("step", "pass_at_k", "completions_digest")  # fields that drafts must not change by one bit


def evaluations(rows: Rows) -> list[Mapping[str, Any]]:
    """Return the evaluations of a run, by step."""
    return [evaluation for row in rows for evaluation in row.get("eval", [])]


def curves(rows: Rows) -> dict[str, Any]:
    """Return name -> list with an item for each evaluation: step, pass_at_1, and for each k pass_at_k with its
    interval."""
    found = evaluations(rows)
    ks = shared_ks(found)
    return {
        "step": [each["step"] for each in found],
        "pass_at_1": [each["pass_at_1"] for each in found],
        "pass_at_k": {k: [each["pass_at_k"][k] for each in found] for k in ks},
        "interval": {k: [each["interval"][k] for each in found] for k in ks},
        "eval_s": [each["eval_s"] for each in found],
    }


def shared_ks(found: Rows) -> list[str]:
    """Return the values of k, as text, for which all evaluations have a pass@k, smallest first. A resumed run may have
    changed the setting eval.k."""
    return [k for k in found[0]["pass_at_k"] if all(k in each["pass_at_k"] for each in found)] if found else []


def exact(row: Mapping[str, Any]) -> list[list[Any]]:
    """Return the fields EXACT of each evaluation in a row of metrics.jsonl."""
    return [[each[key] for key in EXACT] for each in row.get("eval", [])]


def first_difference(rows: Rows, others: Rows) -> int | None:
    """Return the step of the first evaluation that differs between two runs or is missing in one; None if all agree."""
    ours, theirs = ({found[0]: found for row in run for found in exact(row)} for run in (rows, others))
    differing = [step for step in sorted({*ours, *theirs}) if ours.get(step) != theirs.get(step)]
    return differing[0] if differing else None


def points(rows: Rows, metric: str) -> list[tuple[int, float]]:
    """Return (step, value) pairs. metric: eval/pass_at_1, or eval/pass_at_k for the largest k of all evaluations."""
    found = evaluations(rows)
    if metric.removeprefix(PREFIX) == "pass_at_1" or not found:
        return [(each["step"], each["pass_at_1"]) for each in found]
    largest = max(shared_ks(found), key=int)
    return [(each["step"], each["pass_at_k"][largest]) for each in found]


def draw_accuracy(axes: Axes, rows: Rows, colour: str, name: str, order: int) -> None:
    """Draw an arm's pass@1 with its interval, and as a dotted line its pass@k of the largest k. order: the arm's index;
    later arms have other line styles."""
    found = curves(rows)
    largest = max(found["pass_at_k"], key=int)
    axes.plot(
        found["step"],
        found["pass_at_1"],
        color=colour,
        linewidth=max(1.0, 3.0 - 1.2 * order),
        linestyle="-" if order == 0 else (0, (4, 2 + order)),
        label=name,
    )
    low, high = zip(*found["interval"]["1"], strict=True)
    axes.fill_between(found["step"], low, high, color=colour, alpha=0.1, linewidth=0)
    if largest != "1":
        axes.plot(found["step"], found["pass_at_k"][largest], color=colour, linewidth=1, linestyle=(0, (1, 2)))
    axes.set(
        xlabel="training step",
        ylabel="share of problems",
        ylim=(0, 1),
        title="Held-out pass@1 (95 %)" + (f"; dotted: pass@{largest}" if largest != "1" else ""),
    )
