"""Compare arms that did the same work: what they cost, in ratios to the baseline, and whether any result differs.

The first arm is the baseline. An arm of unmodified vLLM samples other tokens, so its distributions are compared.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis import evaluations, read
from analysis.columns import columns, of_arm
from analysis.distribution import compare_distributions, distribution_verdict, is_stock, keeps_bits
from analysis.identity import FINAL, differing, first_differences
from analysis.metrics import cluster_result, summarised, summary

WEIGHTS = {"first": "weights: trained once", "none": "nobody trained"}
WIDEST_TABLE = 400  # characters; so wide that no table is cut to the width of the terminal


def compare_arms(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the content of result.json for the comparison in `folder`. names: the arms; the first is the baseline."""
    rows = {name: read.metrics(folder / "arms" / name) for name in names}
    baseline = names[0]
    stock = next((name for name in names if is_stock(folder / "arms" / name)), None)
    task = read.config(folder).get("task", {}) if (folder / "config.yaml").exists() else {}
    training = who_trained(task)
    once = training != "all"
    result: dict[str, Any] = {"baseline": baseline, "arms": {}, "ratio_to_none": {}, "identical": {}}
    if once:
        result["trained"] = training
    if stock is not None:
        result["ratio_to_stock"] = {}
    bits = {name: keeps_bits(folder / "arms" / name) for name in names}
    sampled = not task.get("recorded")  # else unmodified vLLM has no text to compare
    if not all(bits.values()) and sampled:
        result["distribution"] = {}
    for name in names:
        result["arms"][name] = summarised(rows[name])
        for against, ratios in ((baseline, "ratio_to_none"), (stock, "ratio_to_stock")):
            if against not in (None, name):
                compared = ("rollout_s",) if once else ("rollout_s", "step_s")  # only the first arm has whole steps
                result[ratios][name] = {key: time_ratios(rows[name], rows[against], key) for key in compared}
        if name != baseline and not bits[name] and sampled:
            base_folder, own_folder = folder / "arms" / baseline, folder / "arms" / name
            result["distribution"][name] = compare_distributions(base_folder, own_folder, rows[baseline], rows[name])
        elif name != baseline and bits[name]:
            result["identical"][name] = identity_checks(folder, baseline, name, rows[baseline], rows[name], once)
    curves = {name: evaluations.curves(rows[name]) for name in names if evaluations.evaluations(rows[name])}
    result |= cluster_result([row for name in names for row in rows[name]])
    return {**result, "eval": curves} if curves else result


def who_trained(task: Mapping[str, Any]) -> str:
    """Return which arms of a comparison trained: "all", only the "first", or "none". task: its settings."""
    if task.get("recorded") or not task.get("train", True):
        return "none"
    return "first" if task.get("train_once") else "all"


def time_ratios(arm_rows: list[dict[str, Any]], baseline_rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Return an arm's total time divided by the baseline's: overall, by epoch, and from the second epoch on.

    key: name of the metric, in seconds. per_step summarises the ratios of single steps. A ratio is None if there is no
    time.
    """

    epochs = sorted({row["epoch"] for row in baseline_rows})

    def total_ratio(wanted: Sequence[int]) -> float | None:
        arm_total = sum(row[key] for row in arm_rows if row["epoch"] in wanted)
        baseline_total = sum(row[key] for row in baseline_rows if row["epoch"] in wanted)
        return arm_total / baseline_total if baseline_total else None

    return {
        "overall": total_ratio(epochs),
        "from_second_epoch": total_ratio(epochs[1:]),
        "by_epoch": {str(epoch): total_ratio([epoch]) for epoch in epochs},
        "per_step": summary([arm[key] / base[key] for arm, base in zip(arm_rows, baseline_rows, strict=True)]),
    }


def identity_checks(
    folder: Path,
    baseline: str,
    name: str,
    baseline_rows: list[dict[str, Any]],
    arm_rows: list[dict[str, Any]],
    once: bool = False,
) -> dict[str, bool | int | None]:
    """Compare the results of two arms. Returns name of a result -> whether its bits are equal at every step.

    `first_difference` is the first step at which any result differs, or None. once: the arm did not train, so it has no
    losses, gradient norms and optimizer.
    """
    first = first_differences(arm_rows, baseline_rows, once)
    checks: dict[str, bool | int | None] = {what: step is None for what, step in first.items()}
    arm_final, baseline_final = (read.final(folder / "arms" / arm) for arm in (name, baseline))
    for what in FINAL[:1] if once else FINAL:
        checks[what] = arm_final[what] == baseline_final[what]
    checks["first_difference"] = min((step for step in first.values() if step is not None), default=None)
    return checks


SHORT_KEY = (  # of short_table
    "saved: of none's rollout time. reward: its mean over the first and the last visit of all problems."
)


def short_table(result: Mapping[str, Any]) -> list[list[str]]:
    """Return the table that a comparison prints at its end, the header first. The page has all numbers (full_table).

    result: the result of compare_arms.
    """
    return _table("short", result)


def full_table(result: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of a comparison's page, the header first. result: the result of compare_arms."""
    return _table("comparison", result)


def _table(name: str, result: Mapping[str, Any]) -> list[list[str]]:
    header, *cells = columns(name, [of_arm(result, arm) for arm in result["arms"]])
    return [["arm", *header], *([arm, *of_this] for arm, of_this in zip(result["arms"], cells, strict=True))]


def aligned(lines: Sequence[Sequence[str]], width: int = WIDEST_TABLE) -> str:
    """Return a table as aligned text. lines: the cells of each line. The first line is the header; it is underlined.

    width: the most columns of a line. A table that is wider goes on in a second line in its first column.
    """
    first_column, *other_columns = lines[0]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first_column, overflow="fold", min_width=min(8, max(len(line[0]) for line in lines)))
    for column in other_columns:
        table.add_column(column, justify="right", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    text = io.StringIO()
    Console(file=text, width=width, no_color=True).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def identity_verdict(result: dict[str, Any]) -> str:
    """Return a line for each arm. It says that the arm's results are identical to the baseline's, or which results
    differ and since which step. For an arm that does not keep bits, the line compares distributions instead."""
    lines = []
    for name, checks in result["identical"].items():
        answer = "yes"
        if names := differing(checks):
            first = f", first at step {step}" if (step := checks["first_difference"]) is not None else ""
            answer = f"NO: {', '.join(names)} differ{first}"
        evaluated = ", evaluations" if "eval" in checks else ""
        what = f"completions, rewards, losses, gradient norms, final weights, optimizer state{evaluated}"
        if trained := result.get("trained"):
            what = f"completions, rewards{evaluated}; {WEIGHTS[trained]}"
        lines.append(f"identical: {answer}  ({name} against {result['baseline']}: {what})")
    for name, found in result.get("distribution", {}).items():
        lines.append(distribution_verdict(name, result["baseline"], found))
    return "\n".join(lines)
