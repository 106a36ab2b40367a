"""This module lists the tasks that `python run.py task=NAME` can run.

The comment at the top of configs/task/NAME.yaml describes a task. `python run.py --help`, docs/reference.md and the
error for an unknown task are made from this list. tests/experiments/smoke_tasks.py can run each task in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "task"
COMMAND = "python run.py "


@dataclass(frozen=True)
class Task:
    """A task: its name, the module whose `run(config, composed, folder)` does the work, and what other parts of a run
    must know of it."""

    name: str
    module: str
    trains: bool = False  # it trains, or starts runs that do
    rolls_out: bool = False  # it rolls arms out itself, and fails if one that should draft does not

    def load(self) -> Callable[..., Any]:
        """Import the task's module and return its `run`. Other tasks are not imported: that takes seconds."""
        run: Callable[..., Any] = import_module(self.module).run
        return run

    @property
    def help(self) -> str:
        """The first line of the task's config file, which says what the task does, without the full stop at its end."""
        return self._head()[0].rstrip(".")

    @property
    def example(self) -> str:
        """An example of what to type after `python run.py`: the first command in the comment that heads the config."""
        command = next(line for line in self._head() if line.startswith(COMMAND))
        return command.removeprefix(COMMAND).split("    ")[0]

    def _head(self) -> list[str]:
        lines = (CONFIGS / f"{self.name}.yaml").read_text().splitlines()
        return [line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), lines)]


TASKS = {
    task.name: task
    for task in (
        # Train and roll out.
        Task("compare", "experiments.tasks.compare", trains=True, rolls_out=True),
        Task("train", "experiments.tasks.train", trains=True, rolls_out=True),
        Task("rollout", "experiments.tasks.rollout", rolls_out=True),
        Task("evaluate", "experiments.tasks.evaluate"),
        # Reproduce the papers.
        Task("reproduce", "experiments.tasks.reproduce", trains=True),
        Task("experiment", "experiments.tasks.experiment", trains=True),
        Task("recordings", "experiments.tasks.recordings"),
        # Simulate rollouts at any scale.
        Task("advise", "experiments.tasks.advise"),
        Task("calibrate", "experiments.tasks.calibrate"),
        # Benchmarks.
        Task("bench_drafter", "experiments.measure.drafter"),
        Task("bench_model_drafters", "experiments.measure.model_drafters"),
        # Robustness.
        Task("check_gpu", "experiments.tasks.check_gpu"),
    )
}
# The tasks that train arms themselves: these have checkpoints, from which a run goes on, and heads, which are made.
RESUMED = [task.name for task in TASKS.values() if task.trains and task.rolls_out]
