"""Compare trainings that differ in a setting and in seed: `python -m analysis.multirun SETTING outputs/multirun/DATE`.

SETTING: trainer.lag or any other key of the config. The folder holds runs of task=train. The command prints a table of
times and rewards by the setting's value, and draws rewards.png.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.arms import aligned
from analysis.columns import columns, of_rows
from analysis.figures import figure
from analysis.record import Rows
from analysis.runs import flatten
from das.general.side_output import keep_printing

Runs = Mapping[Any, Sequence[Rows]]  # value of the setting -> the rows of each run
LONG_TAIL = 8  # a step has a long tail if its longest trained response has so many times the median's tokens
SMOOTH = 4  # steps of a moving average
OF_LENGTHS = ("with a long tail", "longest/median", "reward of the last quarter, mean ± std", "each seed")


def runs_by(setting: str, folder: Path) -> dict[Any, list[Rows]]:
    """Read the rows of all runs below `folder`. Returns value of the setting -> the rows of each run.

    Raises SystemExit for a run without the setting.
    """
    found: dict[Any, list[Rows]] = defaultdict(list)
    for path in sorted(folder.rglob("metrics.jsonl")):
        config = flatten(read.config(path.parent))
        if setting not in config:
            raise SystemExit(f"error: {path.parent} has no setting {setting}: name a key of its config.yaml")
        found[config[setting]].append(read.metrics(path.parent))
    return dict(sorted(found.items(), key=lambda item: (isinstance(item[0], str), item[0] or 0)))


def table(setting: str, runs: Runs) -> list[list[str]]:
    """Return a table with a line for each value: means over steps, and the reward of the last quarter of them."""
    rows_of = {value: [row for seed in of_seeds for row in seed] for value, of_seeds in runs.items()}
    header, *cells = columns("values", [of_rows(rows) for rows in rows_of.values()])
    lines = [[setting, *header, *OF_LENGTHS]]
    for (value, of_seeds), shown in zip(runs.items(), cells, strict=True):
        rows = rows_of[value]
        tails = [row["length_max"] / row["length_median"] for row in rows]
        of_long = [row["decode_steps"] for row, tail in zip(rows, tails, strict=True) if tail >= LONG_TAIL]
        last = [np.mean([row["reward"] for row in seed[-max(1, len(seed) // 4) :]]) for seed in of_seeds]
        spread = np.std(last, ddof=1) if len(last) > 1 else 0.0
        lines.append(
            [
                str(value),
                *shown,
                f"{np.mean(of_long):.1f}" if of_long else "none",
                f"{np.mean(tails):.2f}",
                f"{np.mean(last):.3f} ± {spread:.3f}",
                " ".join(f"{seed:.3f}" for seed in last),
            ]
        )
    return lines


def draw(setting: str, runs: Runs, path: Path) -> None:
    """Draw the mean reward by step and its range over seeds, with moving averages; of runs of one value, the steps that
    all of them have."""
    with figure(path, size=(6, 3.6)) as axes:
        for value, of_seeds in runs.items():
            steps = min(map(len, of_seeds))
            rewards_S_T = np.array([[row["reward"] for row in rows[:steps]] for rows in of_seeds])
            window = np.ones(min(SMOOTH, steps)) / min(SMOOTH, steps)
            curves_S_T = np.array([np.convolve(curve, window, "valid") for curve in rewards_S_T])
            numbers = np.arange(len(window), steps + 1)
            (line,) = axes.plot(numbers, curves_S_T.mean(axis=0), label=f"{setting} {value}")
            axes.fill_between(
                numbers, curves_S_T.min(axis=0), curves_S_T.max(axis=0), color=line.get_color(), alpha=0.15
            )
        axes.set(xlabel="training step", ylabel=f"reward, mean of {SMOOTH} steps")
        axes.legend()


def main(arguments: Sequence[str]) -> None:
    """Print the tables and draw the figure of one folder."""
    if len(arguments) != 2:
        raise SystemExit(
            "error: give a setting and a folder: python -m analysis.multirun trainer.lag outputs/multirun/DATE"
        )
    setting, folder = arguments[0], Path(arguments[1])
    runs = runs_by(setting, folder)
    if not runs:
        raise SystemExit(
            f"error: {folder} holds no run (metrics.jsonl): make some with python run.py -m task=train {setting}=0,1"
        )
    print(aligned(table(setting, runs)))
    draw(setting, runs, folder / "rewards.png")


if __name__ == "__main__":
    keep_printing()
    main(sys.argv[1:])
