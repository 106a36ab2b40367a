"""Compare runs in numbers and a figure: python -m analysis.compare RUN_A RUN_B [...] [--figure PNG] [--page HTML]

Each RUN is a run's folder, FOLDER:ARM of a comparison, a comparison's folder (which stands for all its arms), or an
offline W&B run. Every other run is compared with the first.
"""

import math
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from analysis import compare_page, evaluations, panels
from analysis.arms import aligned
from analysis.columns import columns, of_rows
from analysis.distribution import METHOD as STOCK
from analysis.identity import EXACT, FINAL, equal
from analysis.metrics import SHOWN
from analysis.runs import NotARun, Run, find
from das.general.files import replacing
from das.general.side_output import keep_printing

MAX_CONFIG_KEYS = 8  # a line names at most so many differing config keys, and counts the others


@dataclass(frozen=True)
class Difference:
    """The differences between a run and the run with which it is compared."""

    against: str  # name of the run with which the other is compared
    name: str
    identical: bool | None  # None: nothing differs, but not everything could be compared
    lines: list[str]  # the report, with a line for each quantity


def compare(named: Sequence[str], figure: Path | None = None, to_page: Path | None = None) -> list[Difference]:
    """Compare runs with the first of them.

    named: names of runs, as on the command line. figure: where to draw the curves. to_page: where to write the HTML
    page of all panels. Prints nothing. Raises NotARun if a name is not a run, or if there are fewer than two runs.
    """
    return compare_runs(gather(named), figure, to_page)


def gather(named: Sequence[str]) -> list[Run]:
    """Read the named runs, and give each a different name. Raises NotARun if there are fewer than two."""
    runs = [run for name in named for run in find(name)]
    if len(runs) < 2:
        raise NotARun(f"{len(runs)} run named: a comparison needs two or more")
    arm_names = [run.name.rpartition("/")[2] for run in runs]
    for run, arm_name in zip(runs, arm_names, strict=True):
        run.name = arm_name if arm_names.count(arm_name) == 1 else run.name
    for i, run in enumerate(runs):
        if any(other.name == run.name for other in runs[:i]):
            run.name = f"{run.name} #{i + 1}"
    return runs


def compare_runs(runs: Sequence[Run], figure: Path | None = None, to_page: Path | None = None) -> list[Difference]:
    """Compare runs with the first of them, as `compare` does, after they have been read."""
    differences = [difference(runs[0], run) for run in runs[1:]]
    rows = {run.name: run.rows for run in runs}
    if figure is not None:
        with replacing(figure) as file:
            panels.draw(rows, panels.CURVES, file)
    if to_page is not None:
        lines = [line for each in differences for line in each.lines]
        compare_page.write(to_page, run_table(runs), lines, rows)
    return differences


def difference(base: Run, run: Run) -> Difference:
    """Compare `run` with `base`, step by step: results exactly, costs as ratios. Returns the differences in words."""
    run_rows, base_rows = ({row["step"]: row for row in each.rows} for each in (run, base))
    common = sorted(run_rows.keys() & base_rows.keys())
    lines = [f"{run.name} against {base.name}, {len(common)} steps in common"]
    for name, steps, other_steps in (
        (run.name, run_rows.keys(), base_rows.keys()),
        (base.name, base_rows.keys(), run_rows.keys()),
    ):
        extra = sorted(steps - other_steps)
        if extra:
            lines.append(f"  only in {name}: {len(extra)} steps, {extra[0]} to {extra[-1]}; they are not compared")
    verdicts: list[bool | None] = []
    for label, key in {**EXACT, **SHOWN["follows"]}.items():
        values = [(step, base_rows[step].get(key), run_rows[step].get(key)) for step in common]
        verdict, text = compare_exactly(values, base, run)
        verdicts.append(verdict)
        lines.append(f"  {label.replace('_', ' '):<24s} {text}")
    if all(evaluations.evaluations(each.rows) for each in (base, run)):
        values = [(s, evaluations.exact(base_rows[s]), evaluations.exact(run_rows[s])) for s in common]
        verdict, text = compare_exactly(values, base, run)
        verdicts.append(verdict)
        lines.append(f"  {'evaluations':<24s} {text}")
    for key in FINAL:
        verdict, text = compare_final(key, base, run)
        verdicts.append(verdict)
        lines.append(f"  {key.replace('_', ' '):<24s} {text}")
    for label, key in SHOWN["measured"].items():
        lines.append(f"  {label:<24s} {ratio([(base_rows[s].get(key), run_rows[s].get(key)) for s in common])}")
    lines += config_lines(base, run)
    complete = len(common) == len(run_rows) == len(base_rows)
    if any(each.config.get("arm.method") == STOCK for each in (base, run)):
        lines.append(f"identical: not expected  ({run.name} against {base.name}: stock is compared in distribution)")
        return Difference(base.name, run.name, None, lines)
    if any(each.config.get("engine.exact") == "distribution" for each in (base, run)):
        lines.append(f"identical: not expected  ({run.name} against {base.name}: engine.exact=distribution)")
        return Difference(base.name, run.name, None, lines)
    identical = False if False in verdicts else (None if None in verdicts or not complete else True)
    if identical is not True and (data := data_differences(base, run)):
        lines.append(f"identical: not comparable  ({run.name} and {base.name} ran on different data: {data})")
        return Difference(base.name, run.name, None, lines)
    answer = {True: "yes", False: "NO", None: "no difference found, but not everything could be compared"}[identical]
    lines.append(f"identical: {answer}  ({run.name} against {base.name})")
    return Difference(base.name, run.name, identical, lines)


def compare_exactly(values: Sequence[tuple[int, Any, Any]], base: Run, run: Run) -> tuple[bool | None, str]:
    """Return whether a quantity is bit-identical at every step (None: not recorded), and the verdict in words.

    values: (step, value of the base, value of the run). NaN equals NaN, but the words mention it.
    """
    absent = [each.name for each, column in ((base, 1), (run, 2)) if all(value[column] is None for value in values)]
    if absent:
        return None, f"not recorded in {' and '.join(absent)}"
    for step, base_value, run_value in values:
        if not equal(base_value, run_value):
            return False, f"first difference at step {step} ({shown(base_value)}, {shown(run_value)})"
    not_finite = [step for step, value, _ in values if isinstance(value, float) and not math.isfinite(value)]
    return True, "identical" + (f", but not finite from step {not_finite[0]} on" if not_finite else "")


def shown(value: Any) -> str:
    """Return a value as text with all its digits, or the first 8 characters of a digest."""
    return "nothing" if value is None else value[:8] if isinstance(value, str) else repr(value)


def compare_final(key: str, base: Run, run: Run) -> tuple[bool | None, str]:
    """Return whether a digest at the end of both runs is equal (None: not recorded), and the verdict in words."""
    absent = [each.name for each in (base, run) if key not in each.final]
    if absent:
        why = "it has not finished, or did not train"
        return None, f"not recorded in {' and '.join(absent)}: {why}"
    if base.final[key] == run.final[key]:
        return True, "identical"
    return False, f"differ ({shown(base.final[key])}, {shown(run.final[key])})"


def ratio(values: Sequence[tuple[Any, Any]]) -> str:
    """Return as text the means over the steps with both values, and their ratio. values: (base, run) pairs."""
    usable = [(a, b) for a, b in values if isinstance(a, int | float) and isinstance(b, int | float)]
    if not usable:
        return "not recorded in both"
    base_mean, run_mean = np.mean(np.array(usable, float), axis=0)
    return f"{run_mean:.3g} against {base_mean:.3g}" + (f", ratio {run_mean / base_mean:.3f}" if base_mean else "")


def config_lines(base: Run, run: Run) -> list[str]:
    """Return one line that names the config keys in which two runs differ, or no line if none differs."""
    keys = sorted(base.config.keys() | run.config.keys())
    differing = [key for key in keys if base.config.get(key) != run.config.get(key)]
    if not differing:
        return []
    named = [f"{key} ({base.config.get(key)}, {run.config.get(key)})" for key in differing[:MAX_CONFIG_KEYS]]
    more = f" and {len(differing) - MAX_CONFIG_KEYS} more" if len(differing) > MAX_CONFIG_KEYS else ""
    return [f"  configs differ in {', '.join(named)}{more}"]


def data_differences(base: Run, run: Run) -> str:
    """Return in words in which settings of their data two runs differ; "" if in none, or if one recorded none."""
    keys = sorted(key for key in base.config.keys() & run.config.keys() if key.startswith("data."))
    return ", ".join(f"{k} {base.config[k]} and {run.config[k]}" for k in keys if base.config[k] != run.config[k])


def run_table(runs: Sequence[Run]) -> list[list[str]]:
    """Return a header and a line for each run."""
    header, *cells = columns("runs", [of_rows(run.rows) for run in runs])
    return [["run", *header], *([run.name, *of_run] for run, of_run in zip(runs, cells, strict=True))]


def changed(folder: Path) -> float:
    """Return when a run's newest file was written, in seconds since the epoch."""
    return max((file.stat().st_mtime for file in folder.iterdir()), default=folder.stat().st_mtime)


class _Parser(ArgumentParser):
    """A command-line parser whose errors are one line, like those of run.py."""

    def error(self, message: str) -> NoReturn:
        stop(message)


def stop(message: str) -> NoReturn:
    """Print one line to stderr and exit with code 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Run the command: print the table and the differences, draw the curves, write the page if asked."""
    parser = _Parser(prog="python -m analysis.compare", description="Overlay runs and report what differs.")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run's folder, FOLDER:ARM, or an offline-run-* folder of W&B"
    )
    parser.add_argument(
        "--figure", type=Path, help="PNG file for the curves (default: curves.png in the newest run's folder)"
    )
    parser.add_argument("--page", type=Path, help="HTML file for all panels, the table and the differences")
    arguments = parser.parse_args()
    try:
        runs = gather(arguments.runs)
        figure = arguments.figure or max((run.folder for run in runs), key=changed) / "curves.png"
        differences = compare_runs(runs, figure, arguments.page)
    except NotARun as error:
        stop(str(error))
    except OSError as error:
        stop(f"cannot write {error.filename}: {error.strerror}")
    print(aligned(run_table(runs)), "", sep="\n")
    for each in differences:
        print(*each.lines, "", sep="\n")
    print(f"curves: {figure}" + (f"\npage: {arguments.page}" if arguments.page else ""))


if __name__ == "__main__":
    keep_printing()
    main()
