"""Where does the time of a comparison's steps go?

Seconds a step of each arm, part by part, and the *floors* of arms that drafted: what their rollouts would take if
drafting were free, and if every drafted token had been right, so that each pass emitted as many tokens as it has rows,
and there were fewer of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.figures import OTHER_COLOURS, figure

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


def of_arms(arms: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    """Return the mean of `spent` over the steps of each arm. arms: name -> folder."""
    found = {}
    for name, arm in arms.items():
        steps = [spent(row, read.timeline(arm, row["step"])) for row in read.metrics(arm)]
        found[name] = {key: float(np.mean([step[key] for step in steps if key in step])) for key in steps[-1]}
    return found


def table(found: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Return the table of seconds a step, the header first."""
    keys = [key for key in (*PARTS, FREE, RIGHT) if any(key in parts for parts in found.values())]
    cells = [[key, *(f"{parts[key]:.3f}" if key in parts else "-" for parts in found.values())] for key in keys]
    return [["seconds a step", *found], *cells]


def draw(found: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """Draw a bar of PARTS for each arm, and its floors as marks. Returns the path."""
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
    return path
