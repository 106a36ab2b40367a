"""Compare runs in numbers and curves: python -m analysis.compare RUN_A RUN_B [...] [--page HTML]

Each RUN is a run's folder, FOLDER:ARM of a comparison, or a comparison's folder (which stands for all its arms). Every
other run is compared with the first.
"""

import math
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from yaml import YAMLError

from analysis import page, read
from analysis.arms import aligned
from analysis.identity import EXACT, FINAL, equal
from analysis.identity import METHOD as STOCK
from analysis.metrics import SHOWN, columns, evaluations, exact_evaluations, of_rows
from das.general.side_output import keep_printing

ANSWERS = {True: "yes", False: "NO", None: "no difference found, but not everything could be compared"}
MAX_CONFIG_KEYS = 8  # a line names at most so many differing config keys, and counts the others


class NotARun(ValueError):
    """Raised for a name that is not a readable run. The one-line message says which names are possible."""


@dataclass
class Run:
    """What one arm of a run recorded: its metrics, config and final digests."""

    name: str
    folder: Path
    rows: list[dict[str, Any]]  # as in metrics.jsonl: one row for each step, ordered by step
    config: dict[str, Any]  # dotted key -> value
    final: dict[str, str]  # digests of weights and optimizer; empty until the run has finished


def find(named: str) -> list[Run]:
    """Return the runs that a command-line argument names. Raises NotARun if it names none.

    named: a run's folder, an arm of a comparison (FOLDER:ARM or FOLDER/arms/ARM), or the folder of a comparison (for
    all its arms).
    """
    path, arm = Path(named), ""
    if not path.exists() and ":" in named:
        folder_name, _, arm = named.rpartition(":")
        path = Path(folder_name)
    if not path.exists():
        raise NotARun(f"{path} does not exist: name a run's folder, or FOLDER:ARM")
    if (path / "arms").is_dir():
        arms = [folder.name for folder in (path / "arms").iterdir() if (folder / "metrics.jsonl").exists()]
        arms.sort(key=lambda name: (name != "none", name))  # put the baseline first
        if not arms:
            raise NotARun(f"{path}: none of its arms has finished a step yet: wait for the first step")
        if arm and arm not in arms:
            raise NotARun(f"{path} has no arm {arm!r}: choose from {', '.join(arms)}")
        return [from_folder(path / "arms" / name) for name in ([arm] if arm else arms)]
    if arm:
        raise NotARun(f"{path} is not a comparison and has no arms: leave out :{arm}")
    if (path / "metrics.jsonl").exists():
        return [from_folder(path)]
    raise NotARun(f"{path} is not a run: it has neither metrics.jsonl nor arms/")


def from_folder(folder: Path) -> Run:
    """Read the run whose metrics.jsonl is in `folder`. Raises NotARun if a file is missing or damaged."""
    if not (folder / "config.yaml").exists():
        raise NotARun(f"{folder} has no config.yaml: it is not the folder of a run")
    try:
        rows = read.metrics(folder)
        config = flatten(read.config(folder))
        final = read.final(folder) if (folder / "final.json").exists() else {}
    except (ValueError, YAMLError) as error:
        raise NotARun(f"{folder} holds a damaged file: {' '.join(str(error).split())}") from None
    if not rows:
        raise NotARun(f"{folder} has no rows: the run has not finished a step yet")
    if not all(isinstance(row.get("step"), int) for row in rows):
        raise NotARun(f"{folder}: metrics.jsonl has a row without a step: the file is damaged")
    run_folder = folder.parent.parent if folder.parent.name == "arms" else folder
    return Run(f"{run_folder.name}/{config.get('arm.name', folder.name)}", folder, rows, config, final)


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested config as one dictionary with dotted keys."""
    if not isinstance(config, dict) or not config:
        return {prefix: config} if prefix else {}
    dotted: dict[str, Any] = {}
    for key, value in config.items():
        dotted |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return dotted


@dataclass(frozen=True)
class Difference:
    """The differences between a run and the first one."""

    identical: bool | None  # None: nothing differs, but not everything could be compared
    lines: list[str]  # the report, with a line for each quantity


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


def compare(runs: Sequence[Run], to_page: Path | None = None) -> list[Difference]:
    """Compare runs with the first of them. to_page: where to write the HTML page with all panels."""
    differences = [difference(runs[0], run) for run in runs[1:]]
    if to_page is not None:
        lines = [line for each in differences for line in each.lines]
        page.write_runs(to_page, run_table(runs), lines, {run.name: run.rows for run in runs})
    return differences


def difference(base: Run, run: Run) -> Difference:
    """Compare `run` with `base`, step by step: results exactly, costs as ratios. Returns the differences in words."""
    between = f"{run.name} against {base.name}"
    ours, theirs = ({row["step"]: row for row in each.rows} for each in (run, base))
    common = sorted(ours.keys() & theirs.keys())
    lines = [f"{between}, {len(common)} steps in common"]
    for name, extra in ((run.name, sorted(ours.keys() - theirs)), (base.name, sorted(theirs.keys() - ours))):
        if extra:
            lines.append(f"  only in {name}: {len(extra)} steps, {extra[0]} to {extra[-1]}; they are not compared")
    values: dict[str, list[tuple[int | None, Any, Any]]] = {
        label: [(step, theirs[step].get(key), ours[step].get(key)) for step in common]
        for label, key in {**EXACT, **SHOWN["follows"]}.items()
    }
    if all(evaluations(each.rows) for each in (base, run)):
        values["evaluations"] = [(s, exact_evaluations(theirs[s]), exact_evaluations(ours[s])) for s in common]
    values |= {key: [(None, base.final.get(key), run.final.get(key))] for key in FINAL}
    found = {label: compare_exactly(pairs, base, run) for label, pairs in values.items()}
    lines += [f"  {label.replace('_', ' '):<24s} {text}" for label, (_, text) in found.items()]
    for label, key in SHOWN["measured"].items():
        lines.append(f"  {label:<24s} {ratio([(theirs[s].get(key), ours[s].get(key)) for s in common])}")
    changed = changed_settings(base, run)
    more = f" and {len(changed) - MAX_CONFIG_KEYS} more" if len(changed) > MAX_CONFIG_KEYS else ""
    named = ", ".join(f"{key} ({a}, {b})" for key, (a, b) in list(changed.items())[:MAX_CONFIG_KEYS])
    lines += [f"  configs differ in {named}{more}"] if changed else []
    verdicts = [verdict for verdict, _ in found.values()]
    whole = None not in verdicts and len(common) == len(ours) == len(theirs)
    identical = False if False in verdicts else True if whole else None
    data = ", ".join(f"{key} {a} and {b}" for key, (a, b) in changed.items() if key.startswith("data."))
    if reason := other_tokens(base, run):
        identical, answer = None, f"not expected  ({between}: {reason})"
    elif identical is not True and data:
        identical, answer = None, f"not comparable  ({run.name} and {base.name} ran on different data: {data})"
    else:
        answer = f"{ANSWERS[identical]}  ({between})"
    return Difference(identical, [*lines, f"identical: {answer}"])


def other_tokens(*runs: Run) -> str:
    """Return why one of these runs may have other tokens; "" if none may."""
    if any(run.config.get("arm.method") == STOCK for run in runs):
        return "stock is compared in distribution"
    return "engine.exact=distribution" if any(run.config.get("engine.exact") == "distribution" for run in runs) else ""


def compare_exactly(values: Sequence[tuple[int | None, Any, Any]], base: Run, run: Run) -> tuple[bool | None, str]:
    """Return whether a quantity is bit-identical everywhere (None: not recorded), and the verdict in words.

    values: (step, value of the base, value of the run); step None: the end of the runs. NaN equals NaN, but the words
    mention it.
    """
    at_end = [step for step, *_ in values] == [None]
    absent = [each.name for each, column in ((base, 1), (run, 2)) if all(value[column] is None for value in values)]
    if absent:
        why = ": it has not finished, or did not train" if at_end else ""
        return None, f"not recorded in {' and '.join(absent)}{why}"
    for step, base_value, run_value in values:
        if not equal(base_value, run_value):
            where = "differ" if at_end else f"first difference at step {step}"
            return False, f"{where} ({shown(base_value)}, {shown(run_value)})"
    not_finite = [step for step, value, _ in values if isinstance(value, float) and not math.isfinite(value)]
    return True, "identical" + (f", but not finite from step {not_finite[0]} on" if not_finite else "")


def shown(value: Any) -> str:
    """Return a value as text with all its digits, or the first 8 characters of a digest."""
    return "nothing" if value is None else value[:8] if isinstance(value, str) else repr(value)


def ratio(values: Sequence[tuple[Any, Any]]) -> str:
    """Return as text the means over the steps with both values, and their ratio. values: (base, run) pairs."""
    usable = [(a, b) for a, b in values if isinstance(a, int | float) and isinstance(b, int | float)]
    if not usable:
        return "not recorded in both"
    base_mean, run_mean = np.mean(np.array(usable, float), axis=0)
    return f"{run_mean:.3g} against {base_mean:.3g}" + (f", ratio {run_mean / base_mean:.3f}" if base_mean else "")


def changed_settings(base: Run, run: Run) -> dict[str, tuple[Any, Any]]:
    """Return dotted key -> both values, of the settings in which two runs differ."""
    keys = sorted(base.config.keys() | run.config.keys())
    both = {key: (base.config.get(key), run.config.get(key)) for key in keys}
    return {key: (a, b) for key, (a, b) in both.items() if a != b}


def run_table(runs: Sequence[Run]) -> list[list[str]]:
    """Return a header and a line for each run."""
    header, *cells = columns("runs", [of_rows(run.rows) for run in runs])
    return [["run", *header], *([run.name, *of_run] for run, of_run in zip(runs, cells, strict=True))]


class _Parser(ArgumentParser):
    """A command-line parser whose errors are one line, like those of run.py."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


def main() -> None:
    """Run the command: print the table and the differences, write the page."""
    parser = _Parser(prog="python -m analysis.compare", description="Overlay runs and report what differs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or FOLDER:ARM")
    in_newest = "default: curves.html in the newest run's folder"
    parser.add_argument("--page", type=Path, help=f"HTML file for table, differences and curves ({in_newest})")
    arguments = parser.parse_args()
    try:
        runs = gather(arguments.runs)
        newest = max((run.folder for run in runs), key=lambda folder: (folder / "metrics.jsonl").stat().st_mtime)
        to_page = arguments.page or newest / "curves.html"
        differences = compare(runs, to_page)
    except NotARun as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"cannot write {error.filename}: {error.strerror}")
    print(aligned(run_table(runs)), "", sep="\n")
    for each in differences:
        print(*each.lines, "", sep="\n")
    print(f"page: {to_page}")


if __name__ == "__main__":
    keep_printing()
    main()
