"""DAS Fig 13: rollouts with a shorter limit of response lengths, or with a smaller batch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.report import Section
from analysis.sections.shared import policy_note
from analysis.sections.time_and_reward import draw, reduction_lines, same_training, saves_time

# label of the run -> its data in published.json, and what the paper's text claims
PANELS = {"half_cap": ("das_fig13_8k", "over 30 %"), "half_batch": ("das_fig13_batch16", "similar to Fig 11")}


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare Fig 11 with half its limit of lengths or half its batch; in the paper 8k for 16k tokens, 16 for 32
    problems."""
    lines, orderings = [], []
    for label, run in runs.items():
        key, claimed = PANELS[label]
        paper = published[key]["data"]
        draw(run, ["none", "das"], paper, folder / f"{label}.png", f"Fig 13, {label.replace('_', ' ')}")
        name = label.replace("_", " ")
        lines += [replace(line, what=f"{name}: {line.what}") for line in reduction_lines(run, paper, 20, claimed)]
        orderings += [
            saves_time(f"{name}: DAS needs less rollout time than no speculation", run, paper, 20),
            same_training(run),
        ]
    return Section(
        title,
        " ".join(f"{label.replace('_', ' ')}: {policy_note(run)}" for label, run in runs.items()),
        lines,
        "The paper's left panel shows less than its text claims: 15.8 % over steps 1-20, instead of over 30 %.",
        [f"{label}.png" for label in runs],
        orderings=orderings,
    )
