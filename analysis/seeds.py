"""Sum up comparisons that differ in their seed alone: `python -m analysis.seeds FOLDER [FOLDER ...]`.

The folders hold finished comparisons (`python run.py -m seed=0,1,2 arms=[...]` leaves them below outputs/multirun).
Prints a table of arms, each cell the mean over the seeds and their range, and whether all seeds were identical. `--json
FILE` keeps the numbers.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import read
from analysis.arms import aligned
from analysis.columns import of_arm
from analysis.identity import differing
from analysis.metrics import SHOWN, summary
from das.general.files import write_text
from das.general.side_output import keep_printing

AGAINST = ("none", "stock", "suffix")  # arms with which rollout times are compared, where a comparison has them
COLUMNS = {
    **{f"of_{arm}": f"of {arm}" for arm in AGAINST},
    **{name: header for name, (header, *_) in SHOWN["seeds"].items()},
}
Spread = dict[str, dict[str, dict[str, Any]]]  # arm -> key of COLUMNS -> n, mean, std, min, max


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


def spread(results: Sequence[Mapping[str, Any]]) -> Spread:
    """Sum up each arm's numbers over comparisons. A number that one of them lacks is left out."""
    found: Spread = {}
    for name in results[0]["arms"]:
        of_seeds = [_numbers(result, name) for result in results]
        keys = [key for key in COLUMNS if all(numbers.get(key) is not None for numbers in of_seeds)]
        found[name] = {key: summary([numbers[key] for numbers in of_seeds]) for key in keys}
    return found


def _numbers(result: Mapping[str, Any], name: str) -> dict[str, Any]:
    arms, shown = result["arms"], of_arm(result, name)
    found = {key: shown[metric].get(number) for key, (_, metric, number) in SHOWN["seeds"].items()}
    own_s = arms[name]["rollout_s"]["mean"]
    return {
        **{f"of_{arm}": own_s / arms[arm]["rollout_s"]["mean"] for arm in AGAINST if arm in arms},
        **{key: None if value is None else float(value) for key, value in found.items()},
    }


def table(found: Spread) -> list[list[str]]:
    """Return the table, the header first. A cell: mean (smallest to largest), or the mean of equal numbers."""
    keys = [key for key in COLUMNS if any(key in numbers for numbers in found.values())]
    return [
        ["arm", *(COLUMNS[key] for key in keys)],
        *([name, *(cell(numbers.get(key)) for key in keys)] for name, numbers in found.items()),
    ]


def cell(numbers: Mapping[str, Any] | None) -> str:
    """Return a number's mean and range as text."""
    if numbers is None:
        return "-"
    mean, low, high = (f"{numbers[key]:.2f}" for key in ("mean", "min", "max"))
    return mean if low == high else f"{mean} ({low} to {high})"


def verdict(results: Sequence[Mapping[str, Any]]) -> str:
    """Return in words whether drafts changed a result with any seed."""
    wrong = [
        f"{name}: {', '.join(bad)}"
        for each in results
        for name, c in each["identical"].items()
        if (bad := differing(c))
    ]
    return f"identical: {'NO: ' + '; '.join(wrong) if wrong else 'yes'}  ({len(results)} comparisons)"


def main(words: Sequence[str]) -> None:
    """Print the table."""
    parser = ArgumentParser(prog="python -m analysis.seeds", description=__doc__, allow_abbrev=False)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="a file that keeps the numbers")
    given = parser.parse_args(words)
    results = comparisons(given.folders)
    found = spread(results)
    print(aligned(table(found)))
    print(verdict(results))
    if given.json is not None:
        write_text(given.json, json.dumps({"seeds": len(results), "arms": found}, indent=1) + "\n")


if __name__ == "__main__":
    keep_printing()
    main(sys.argv[1:])
