"""This module lists the tasks that `python run.py task=NAME` can run.

The comment at the top of configs/task/NAME.yaml describes a task. `python run.py --help`, docs/reference.md and the
error for an unknown task are made from this list. tests/experiments/smoke_tasks.py can run each task in seconds.
"""

import io
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
    """A task: its name, the module whose function, called with (config, composed, folder), does the work, and what
    other parts of a run must know of it."""

    name: str
    module: str
    function: str = "run"
    trains: bool = False  # it trains, or starts runs that do
    rolls_out: bool = False  # it rolls arms out itself, and fails if one that should draft does not

    def load(self) -> Callable[..., Any]:
        """Import the task's module and return its function. Other tasks are not imported: that takes seconds."""
        function: Callable[..., Any] = getattr(import_module(self.module), self.function)
        return function

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
        Task("compare", "experiments.compare.comparison", trains=True, rolls_out=True),
        Task("train", "experiments.tasks.train", trains=True, rolls_out=True),
        Task("rollout", "experiments.tasks.train", "roll_out", rolls_out=True),
        Task("evaluate", "experiments.tasks.evaluate"),
        # Reproduce the papers.
        Task("reproduce", "experiments.tasks.reproduce", trains=True),
        Task("experiment", "experiments.tasks.reproduce", "experiment", trains=True),
        Task("recordings", "experiments.papers.recordings"),
        # Simulate rollouts at any scale.
        Task("advise", "experiments.tasks.advise"),
        Task("calibrate", "experiments.measure.calibrate"),
        # Benchmarks.
        Task("bench_drafter", "experiments.measure.drafter"),
        Task("bench_model_drafters", "experiments.measure.model_drafters"),
        # Robustness.
        Task("check_gpu", "experiments.gpu.check_gpu"),
    )
}
# The tasks that train arms themselves: these have checkpoints, from which a run goes on, and heads, which are made.
RESUMED = [task.name for task in TASKS.values() if task.trains and task.rolls_out]


def usage() -> str:
    """Return the text that `python run.py --help` prints."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task")
    table.add_column("what it does")
    for task in TASKS.values():
        table.add_row(task.name, task.help)
    text = io.StringIO()
    width = Console().width if Console().is_terminal else 120
    terminal = Console(file=text, width=width, highlight=False, markup=False)
    terminal.print("usage: python run.py [task=NAME] [KEY=VALUE ...]    (task=compare if none is named)\n")
    terminal.print(table)
    terminal.print(
        "\nconfigs/ lists every KEY with its unit or source. docs/reference.md has examples.\n"
        "`python run.py task=NAME --cfg job` prints a task's config; `python run.py --hydra-help` prints Hydra's flags."
    )
    return text.getvalue().rstrip()
