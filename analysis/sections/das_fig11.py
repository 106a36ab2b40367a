"""DAS Fig 11: rollout time and reward over training, code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.report import Section
from analysis.sections.time_and_reward import PaperClaims, das_against_none


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare our steps with the paper's 50, in which no problem comes twice. Our problems return every 4 steps."""
    (run,) = runs.values()
    paper = published["das_fig11_time"]["data"]
    differs = (
        "In the paper's 50 steps no problem comes twice; our problems come again every 4 steps. The paper's reward "
        "reaches 1.85, although the text describes it as pass or fail. Ours is 1 if all tests pass."
    )
    claims = PaperClaims(last_step=50, reduction="about 25 %", rewards="1.637 / 1.639")
    return das_against_none(title, run, paper, claims, differs, folder / "code.png")
