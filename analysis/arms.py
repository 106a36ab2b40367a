"""Compare arms that did the same work: what they cost, in ratios to the baseline, and whether any result differs.

The first arm is the baseline. The verdict is a line after each step while arms run, and a box at their end.
"""

import io
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis import read
from analysis.identity import (
    FINAL,
    METHOD,
    compare_distributions,
    differing,
    distribution_verdict,
    first_differences,
    keeps_bits,
)
from analysis.metrics import cluster_result, columns, curves, evaluations, of_arm, summarised, summary

WEIGHTS = {"first": "weights: trained once", "none": "nobody trained"}
WIDEST_TABLE = 400  # characters; so wide that no table is cut to the width of the terminal


def compare_arms(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the content of result.json for the comparison in `folder`. names: the arms; the first is the baseline."""
    folders = {name: folder / "arms" / name for name in names}
    rows = {name: read.metrics(path) for name, path in folders.items()}
    settings = {name: read.config(path) for name, path in folders.items()}
    baseline, task = names[0], read.config(folder)["task"]
    stock = next((name for name in names if settings[name]["arm"]["method"] == METHOD), None)
    training = who_trained(task)
    once = training != "all"
    compared = ("rollout_s",) if once else ("rollout_s", "step_s")  # only the first arm has whole steps

    def ratios(against: str) -> dict[str, Any]:
        others = [name for name in names if name != against]
        return {name: {key: time_ratios(rows[name], rows[against], key) for key in compared} for name in others}

    result: dict[str, Any] = {
        "baseline": baseline,
        "arms": {name: summarised(rows[name]) for name in names},
        "ratio_to_none": ratios(baseline),
        "identical": {},
    }
    result |= {"trained": training} if once else {}
    result |= {} if stock is None else {"ratio_to_stock": ratios(stock)}
    for name in names[1:]:
        if keeps_bits(settings[name]):
            result["identical"][name] = identity_checks(folders[baseline], folders[name], once)
        elif not task.get("recorded"):  # else unmodified vLLM has no text to compare
            found = compare_distributions(folders[baseline], folders[name], rows[baseline], rows[name])
            result.setdefault("distribution", {})[name] = found
    result |= cluster_result([row for name in names for row in rows[name]])
    evaluated = {name: curves(rows[name]) for name in names if evaluations(rows[name])}
    return {**result, "eval": evaluated} if evaluated else result


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


def identity_checks(baseline: Path, arm: Path, once: bool = False) -> dict[str, bool | int | None]:
    """Compare the results of two arms in their folders. Returns name of a result -> whether its bits are equal at every
    step.

    `first_difference` is the first step at which any result differs, or None. once: the arm did not train, so it has no
    losses, gradient norms and optimizer.
    """
    first = first_differences(read.metrics(arm), read.metrics(baseline), once)
    checks: dict[str, bool | int | None] = {what: step is None for what, step in first.items()}
    final, baseline_final = read.final(arm), read.final(baseline)
    checks |= {what: final[what] == baseline_final[what] for what in (FINAL[:1] if once else FINAL)}
    checks["first_difference"] = min((step for step in first.values() if step is not None), default=None)
    return checks


SHORT_KEY = (  # of the table "short"
    "saved: of none's rollout time. reward: its mean over the first and the last visit of all problems."
)


def table(result: Mapping[str, Any], name: str) -> list[list[str]]:
    """Return a table of a comparison, the header first.

    result: the result of compare_arms. name: of metrics.yaml: `comparison` has all numbers, for the page, and `short`
    those that are printed at the end.
    """
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


WIDTH = 100  # columns of the box and of the table at the end, so that they fit a terminal


class SoFar:
    """Compares the arms' rows step by step, while they come in any order.

    arms: the names, the baseline first. other_tokens: the arms that do not keep bits, which are not compared.
    responses: number of responses of an arm in a step. once: only the first arm trains (task.train_once).
    """

    def __init__(self, arms: Sequence[str], other_tokens: Collection[str], responses: int, once: bool = False):
        self._baseline = arms[0]
        self._compared = [name for name in arms[1:] if name not in other_tokens]
        self._arms, self._responses = list(arms), responses
        self._once = once
        self._rows: dict[str, Mapping[str, Any]] = {}  # of the step that is under way
        self._seconds = dict.fromkeys(arms, 0.0)
        self._checked = 0  # responses that were compared with the baseline's
        self._differs = ""  # the first difference, in words

    def add(self, row: Mapping[str, Any]) -> str | None:
        """Take an arm's row of a step. Returns the verdict so far if it was the step's last arm, else None."""
        self._rows[row["arm"]] = row
        self._seconds[row["arm"]] += row["rollout_s"]
        if len(self._rows) < len(self._arms):
            return None
        base = self._rows[self._baseline]
        for name in self._compared:
            if not self._differs and any(first_differences([self._rows[name]], [base], self._once).values()):
                self._differs = f"NO, {name} differs since step {row['step']}"
            self._checked += self._responses
        self._rows = {}
        parts = [f"identical so far: {self._differs or f'yes ({self._checked} responses)'}"] if self._compared else []
        ratios = [f"{name} {self._seconds[name] / self._seconds[self._baseline]:.2f}" for name in self._arms[1:]]
        return " · ".join([*parts, f"{', '.join(ratios)} of {self._baseline}"])


def verdict_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the verdict of a finished comparison, in sentences: times first. result: the result of compare_arms."""
    arms, baseline, compared = result["arms"], result["baseline"], result["ratio_to_none"]
    lines = []
    for name, ratios in compared.items():
        times = [f"Rollouts: {_change(arms[baseline], arms[name], 'rollout_s')}."]
        if "step_s" in ratios:
            times.append(f"Whole run: {_change(arms[baseline], arms[name], 'step_s')}.")
        whose = f"{name} · " if len(compared) > 1 else ""
        lines.append(f"{whose}{' '.join(times)} {_sameness(result, name)}.")
    return [*lines, *identity_verdict(dict(result)).splitlines()]


def headline(result: Mapping[str, Any]) -> str:
    """Return the verdict of a finished comparison in one line, that of das where it is an arm, else of the last arm."""
    name = "das" if "das" in result["ratio_to_none"] else list(result["arms"])[-1]
    ratio = result["ratio_to_none"][name]["rollout_s"]["overall"]
    times = "no rollouts" if ratio is None else f"rollouts in {ratio:.2f} of the time of {result['baseline']}"
    said = _sameness(result, name)
    return f"{name}: {times}, {said[0].lower() + said[1:] if said[:3] != 'NOT' else said}"


def _change(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> str:
    """Return how long a part of a run takes in two arms: 4 min 48 s → 1 min 38 s."""
    return " → ".join(duration(arm[key]["n"] * arm[key]["mean"]) for arm in (before, after))


def _sameness(result: Mapping[str, Any], name: str) -> str:
    if name not in result["identical"]:
        return "Other tokens, as this arm samples its own"
    if not all(equal for what, equal in result["identical"][name].items() if what != "first_difference"):
        return f"NOT the same results as {result['baseline']}"
    return "Same tokens" if "trained" in result else "Same tokens, same weights"


def duration(seconds: float) -> str:
    """Return a time in words: 4 min 48 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def boxed(title: str, lines: Sequence[str]) -> str:
    """Return lines in a box of WIDTH columns, wrapped where they are longer."""
    inner = WIDTH - 4
    wrapped = [part for line in lines for part in textwrap.wrap(line, inner, subsequent_indent="  ")]
    body = [f"│ {line:<{inner}s} │" for line in wrapped]
    return "\n".join([f"╭─ {title} {'─' * (inner - len(title) - 1)}╮", *body, f"╰{'─' * (inner + 2)}╯"])
