"""Sum up runs over their seeds: python -m analysis.summary FOLDER [FOLDER ...] [--by SETTING] [--json FILE]

The folders hold finished runs (`python run.py -m seed=0,1,2 ...` leaves them below outputs/multirun). Comparisons are
summed up by arm. With --by, trainings (task=train) are summed up by the value of a setting, such as trainer.lag, and
rewards.png in the first folder shows their rewards. A cell is the mean over the seeds, and their range.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import read
from analysis.arms import aligned
from analysis.compare import flatten
from analysis.figures import SMOOTH, figure
from analysis.identity import differing
from analysis.metrics import SHOWN, of_arm, of_rows
from das.general.files import write_text
from das.general.side_output import keep_printing

AGAINST = ("none", "stock", "suffix")  # arms with which rollout times are compared, where a comparison has them


def comparisons(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Read the results of all finished comparisons in these folders. Raises SystemExit if there are none, or if their
    arms differ."""
    paths = sorted({path for folder in folders for path in folder.rglob("result.json")})
    found = [result for path in paths if "ratio_to_none" in (result := read.result(path.parent))]
    if not found:
        named = ", ".join(map(str, folders))
        raise SystemExit(f"error: {named}: no finished comparison; python run.py -m seed=0,1,2 makes some")
    if len({tuple(result["arms"]) for result in found}) > 1:
        raise SystemExit("error: the comparisons have different arms: name folders of one set of runs")
    return found


def trainings(folders: Sequence[Path], setting: str) -> list[tuple[Any, list[dict[str, Any]]]]:
    """Read the rows of all trainings in these folders, each with its value of the setting. Raises SystemExit if there
    are none, or if one lacks the setting."""
    found = []
    for path in sorted({path for folder in folders for path in folder.rglob("metrics.jsonl")}):
        config = flatten(read.config(path.parent))
        if setting not in config:
            raise SystemExit(f"error: {path.parent} has no setting {setting}: name a key of its config.yaml")
        found.append((config[setting], read.metrics(path.parent)))
    if not found:
        made = f"make some with python run.py -m task=train {setting}=0,1 seed=0,1,2"
        raise SystemExit(f"error: {', '.join(map(str, folders))}: no run (metrics.jsonl): {made}")
    return found


def numbers_of_arm(result: Mapping[str, Any], name: str) -> dict[str, float | None]:
    """Return an arm's numbers by the headers of their columns."""
    shown, own_s = of_arm(result, name), {arm: each["rollout_s"]["mean"] for arm, each in result["arms"].items()}
    ratios = {f"of {arm}": own_s[name] / own_s[arm] for arm in AGAINST if arm in own_s}
    return ratios | {header: shown[metric].get(number) for header, (metric, number) in SHOWN["of_seeds"].items()}


def summed_up(rows: Sequence[Mapping[str, Any]], by: str) -> pd.DataFrame:
    """Return n, mean, std, min and max of each column, for each value of the column `by`."""
    frame = pd.DataFrame(rows).set_index(by).astype(float).dropna(axis=1, how="all")
    grouped = frame.groupby(level=0, sort=by != "arm")
    return grouped.agg(["count", "mean", "std", "min", "max"]).rename(columns={"count": "n"}, level=1)


def table(found: pd.DataFrame, digits: int) -> list[list[str]]:
    """Return the table, the header first. A cell: mean (smallest to largest), or the mean of equal numbers."""

    def cell(numbers: pd.Series) -> str:
        mean, low, high = (f"{numbers[key]:.{digits}f}" for key in ("mean", "min", "max"))
        return "-" if not numbers["n"] else mean if low == high else f"{mean} ({low} to {high})"

    headers = list(dict.fromkeys(found.columns.get_level_values(0)))
    rows = [[str(value), *(cell(row[header]) for header in headers)] for value, row in found.iterrows()]
    return [[str(found.index.name), *headers], *rows]


def verdict(results: Sequence[Mapping[str, Any]]) -> str:
    """Return in words whether drafts changed a result with any seed."""
    checks = [(name, differing(found)) for each in results for name, found in each["identical"].items()]
    wrong = [f"{name}: {', '.join(bad)}" for name, bad in checks if bad]
    return f"identical: {'NO: ' + '; '.join(wrong) if wrong else 'yes'}  ({len(results)} comparisons)"


def draw(setting: str, runs: Sequence[tuple[Any, list[dict[str, Any]]]], path: Path) -> None:
    """Draw the mean reward by step and its range over seeds, with moving means."""
    rewards = [(value, pd.Series({row["step"]: row["reward"] for row in rows})) for value, rows in runs]
    curves = pd.DataFrame({(value, i): of_run for i, (value, of_run) in enumerate(rewards)})
    curves = curves.rolling(min(SMOOTH, len(curves))).mean()
    with figure(path, size=(6, 3.6)) as axes:
        for value in dict.fromkeys(value for value, _ in runs):
            of_value = curves[value].dropna()
            (line,) = axes.plot(of_value.index, of_value.mean(axis=1), label=f"{setting} {value}")
            low, high = of_value.min(axis=1), of_value.max(axis=1)
            axes.fill_between(of_value.index, low, high, color=line.get_color(), alpha=0.15)
        axes.set(xlabel="training step", ylabel=f"reward, mean of {SMOOTH} steps")
        axes.legend()


def main(words: Sequence[str]) -> None:
    """Print the table."""
    parser = ArgumentParser(prog="python -m analysis.summary", description=__doc__, allow_abbrev=False)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--by", metavar="SETTING", help="sum up trainings by this key of their configs")
    parser.add_argument("--json", type=Path, help="a file that keeps the numbers")
    given = parser.parse_args(words)
    if given.by is None:
        results = comparisons(given.folders)
        rows = [{"arm": name, **numbers_of_arm(each, name)} for each in results for name in each["arms"]]
        found = summed_up(rows, "arm")
        print(aligned(table(found, 2)), verdict(results), sep="\n")
    else:
        runs = trainings(given.folders, given.by)
        of_runs = [(value, of_rows(rows)) for value, rows in runs]
        shown = SHOWN["of_values"].items()
        found = summed_up([{given.by: v, **{h: n[m].get(k) for h, (m, k) in shown}} for v, n in of_runs], given.by)
        print(aligned(table(found, 3)))
        draw(given.by, runs, given.folders[0] / "rewards.png")
    if given.json is not None:
        kept = {
            str(value): {h: row[h].dropna().to_dict() for h in row.index.levels[0]} for value, row in found.iterrows()
        }
        write_text(given.json, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    keep_printing()
    main(sys.argv[1:])
