"""A section about the training of a single arm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis import read
from analysis.figures import figure
from analysis.report import Section, Table
from analysis.sections.shared import policy_note


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Make the section: a table that summarises each metric over the steps, and curves."""
    (run,) = runs.values()
    ((name, summaries),) = read.result(run)["arms"].items()
    rows = read.metrics(run / "arms" / name)
    shown = {"rollout_s": "rollout time (s)", "reward": "mean reward", "tokens_per_pass": "tokens per pass"}
    with figure(folder / "training.png", panels=3) as panels:
        for axes, (key, label) in zip(panels, shown.items(), strict=True):
            axes.plot([row["step"] for row in rows], [row[key] for row in rows], color="#0072B2")
            axes.set(xlabel="training step", ylabel=label, ylim=(0, None))
    table = [
        [key, *(f"{values[column]:.4g}" for column in ("mean", "std", "min", "max"))]
        for key, values in summaries.items()
    ]
    return Section(
        title, policy_note(run), table=Table(["per step", "mean", "std", "min", "max"], table), figures=["training.png"]
    )
