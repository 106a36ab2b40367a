"""Where does the time of a comparison's steps go? `python -m analysis.time_spent FOLDER [--from-step N]`.

FOLDER holds a finished comparison. Prints seconds a step of each arm, part by part, and the *floors* of arms that
drafted: what their rollouts would take if drafting were free, and if every drafted token had been right, so that each
pass emitted as many tokens as it has rows, and there were fewer of them. Writes time_spent.png into the folder.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.arms import aligned
from analysis.figures import OTHER_COLOURS, figure
from das.side_output import keep_printing

LIVE = {"passes, 9+ live": (9, 2**31), "5 to 8 live": (5, 8), "3 or 4": (3, 4), "1 or 2": (1, 2)}  # of requests
DRAFTING, AROUND, WEIGHTS, TRAINING = "drafting", "around passes", "weights, notes", "training"
FREE, RIGHT = "floor: drafting free", "floor: all drafts right"
PARTS = (*LIVE, DRAFTING, AROUND, WEIGHTS, TRAINING)
SHADES = ("#1f4e79", "#2e75b6", "#74a9d8", "#bdd7ee")  # of passes, the darker the more requests


def spent(row: Mapping[str, Any], passes: Mapping[str, Any]) -> dict[str, float]:
    """Divide a step's seconds into PARTS, and add its floors. row: its metrics. passes: its timeline."""
    took = np.diff(np.asarray(passes["step_time_s"], float), prepend=0.0)
    live, rows, emitted = (np.asarray(passes[key], float) for key in ("step_live", "step_tokens", "step_emitted"))
    verified = took * max(0.0, 1 - row["draft_s"] / max(took.sum(), 1e-9))  # drafting lies between passes
    found = {name: float(verified[(live >= low) & (live <= high)].sum()) for name, (low, high) in LIVE.items()}
    found |= {DRAFTING: row["draft_s"], AROUND: row["rollout_s"] - float(took.sum())}
    if "step_s" in row:  # arms that do not train have none
        found |= {WEIGHTS: row["exposed_s"] - row["rollout_s"], TRAINING: row["step_s"] - row["exposed_s"]}
    if row["drafted"]:
        found[FREE] = row["rollout_s"] - row["draft_s"]
        found[RIGHT] = found[AROUND] + float((took * np.minimum(1.0, emitted / np.maximum(rows, 1))).sum())
    return found


def of_arms(folder: Path, first: int) -> dict[str, dict[str, float]]:
    """Returns the mean of `spent` over the steps from `first` on, by arm. Raises SystemExit for a folder without a
    finished comparison, or without such steps."""
    if not (folder / "result.json").is_file():
        raise SystemExit(f"error: {folder}: no finished comparison; python run.py makes one")
    found = {}
    for name in read.result(folder)["arms"]:
        arm = folder / "arms" / name
        steps = [spent(row, read.timeline(arm, row["step"])) for row in read.metrics(arm) if row["step"] >= first]
        if not steps:
            raise SystemExit(f"error: {folder}: {name} has no step {first} or later; choose an earlier --from-step")
        found[name] = {key: float(np.mean([step[key] for step in steps if key in step])) for key in steps[-1]}
    return found


def table(found: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Return the table of seconds a step, the header first."""
    keys = [key for key in (*PARTS, FREE, RIGHT) if any(key in parts for parts in found.values())]
    cells = [[key, *(f"{parts[key]:.3f}" if key in parts else "-" for parts in found.values())] for key in keys]
    return [["seconds a step", *found], *cells]


def draw(found: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw a bar of PARTS for each arm, and its floors as marks."""
    colours = dict(zip(PARTS, (*SHADES, *OTHER_COLOURS), strict=False))
    with figure(path, size=(9, 1.4 + 0.5 * len(found))) as axes:
        for place, parts in enumerate(found.values()):
            left = 0.0
            for key in PARTS:
                label = key if not place else None
                axes.barh(place, parts.get(key, 0.0), left=left, color=colours.get(key, "#999999"), label=label)
                left += parts.get(key, 0.0)
            for key, mark in ((FREE, "|"), (RIGHT, "D")):
                if key in parts:
                    axes.plot(parts[key], place, mark, color="black", markersize=9 if mark == "|" else 5)
        axes.plot([], [], "|", color="black", label=FREE)
        axes.plot([], [], "D", color="black", label=RIGHT)
        axes.set(
            yticks=range(len(found)), yticklabels=list(found), xlabel="seconds a step", title="Where the time goes"
        )
        axes.invert_yaxis()
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.34), ncols=5, fontsize=8)


def main(words: Sequence[str]) -> None:
    """Print the table, and draw it."""
    parser = ArgumentParser(prog="python -m analysis.time_spent", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from-step", type=int, default=1, help="the first step that counts; with 9 in the default "
                        "experiment, steps in which each problem has a history")  # fmt: skip
    given = parser.parse_args(words)
    found = of_arms(given.folder, given.from_step)
    print(aligned(table(found)))
    draw(found, given.folder / "time_spent.png")
    print(f"picture: {given.folder / 'time_spent.png'}")


if __name__ == "__main__":
    keep_printing()
    main(sys.argv[1:])
