"""DAS Fig 10: rollout time and reward over training, maths."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.report import Section
from analysis.sections.time_and_reward import PaperClaims, das_against_none


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare our steps with the paper's steps 1-24. The paper's steps 25-30 lie outside its figure's axes, and save
    only 7 %."""
    (run,) = runs.values()
    paper = published["das_fig10_time"]["data"]
    differs = (
        "The paper saves half from its first step on, before any problem has come twice. Ours starts with drafts from "
        "siblings and from the request's own text, and saves more once there is a history. In the paper's steps 25-30, "
        "which lie outside its axes, it saves 7 %."
    )
    claims = PaperClaims(last_step=24, reduction="more than 50 %", rewards="0.693 / 0.694")
    return das_against_none(title, run, paper, claims, differs, folder / "maths.png")
