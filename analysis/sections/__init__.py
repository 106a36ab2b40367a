"""A figure or table is a function of its runs and the papers' numbers, and gives a section of the report. Its name is
FILE_ROW of configs/experiment, which says what runs. All ablations have one function."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from analysis.report import Section
from analysis.sections import das, das_trainings, efficient_rollout, nemo_rl
from analysis.sections.given import Given, Record


def section(name: str, title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Make a section, and draw its pictures into `folder`.

    name: FILE_ROW of configs/experiment. runs: label -> folder of a run. published: experiments/papers/published.json.
    """
    records = {label: Record(path) for label, path in runs.items()}
    return function(name)(Given(title, records, published, folder))


def function(name: str) -> Callable[[Given], Section]:
    """Return the function of a section."""
    key = "ablation" if name.startswith("ablation_") else name
    (found,) = [getattr(each, key) for each in (das, das_trainings, efficient_rollout, nemo_rl) if hasattr(each, key)]
    made: Callable[[Given], Section] = found
    return made
