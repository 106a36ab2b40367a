"""DAS Fig 12: compare a budget of drafted tokens that depends on response lengths with drafting without a limit."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.orderings import Ordering
from analysis.report import Section
from analysis.sections.shared import policy_note, rows, total
from analysis.sections.time_and_reward import draw, every_step, reduction, reduction_lines, same_training


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare rollout times of the arms das, das_unlimited and none, for each run. The paper has rollouts on code."""
    paper = published["das_fig12"]["data"]
    lines, orderings, figures = [], [], []
    for label, run in runs.items():
        draw(run, ["none", "das", "das_unlimited"], paper, folder / f"budget_{label}.png", f"Fig 12, {label}")
        figures.append(f"budget_{label}.png")
        for arm, other, claimed in (
            ("das", "das_unlimited", "up to 15 %"),
            ("das_unlimited", "none", ""),
            ("das", "none", ""),
        ):
            arm_lines = reduction_lines(run, paper, 18, claimed, arm, other)
            lines += [replace(line, what=f"{label}: {line.what}") for line in arm_lines]
            orderings.append(
                Ordering(
                    f"{label}: {arm} needs less rollout time than {other}",
                    reduction(rows(run, arm), rows(run, other)) > 0,
                    every_step(run, arm, other),
                )
            )
        orderings.append(same_training(run))
    first = next(iter(runs.values()))
    wasted = {
        arm: total(rows(first, arm), "wasted") / total(rows(first, arm), "tokens") for arm in ("das", "das_unlimited")
    }
    return Section(
        title,
        " ".join(f"{label}: {policy_note(run)}" for label, run in runs.items())
        + f" Rejected draft tokens per emitted token: {wasted['das']:.2f} with das, {wasted['das_unlimited']:.2f} with "
        "das_unlimited.",
        lines,
        "On this CPU a drafted token costs a sixth of a pass with one request, so drafting without a limit is "
        "expensive (docs/drafters_and_budgets.md). The paper's GPUs verify draft tokens nearly for free.",
        figures,
        orderings=orderings,
    )
