"""Every task that `python run.py task=NAME` runs. The head of configs/task/NAME.yaml describes the task.

`python run.py --help`, the error for an unknown task and docs/commands.md are made from this list.
tests/experiments/smoke_tasks.py has a run of seconds of each.
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
    """`module.run(config, overrides, folder)` does the task's work."""

    name: str
    module: str

    def load(self) -> Callable[..., Any]:
        """Import the module. Tasks import vLLM and TRL, which takes seconds, so only the chosen one is imported."""
        run: Callable[..., Any] = import_module(self.module).run
        return run

    @property
    def help(self) -> str:
        """What the task does, in a line: the first one of its config."""
        return self._head()[0].rstrip(".")

    @property
    def example(self) -> str:
        """What to type after `python run.py`: the first command in the head of its config."""
        command = next(line for line in self._head() if line.startswith(COMMAND))
        return command.removeprefix(COMMAND).split("    ")[0]

    def _head(self) -> list[str]:
        lines = (CONFIGS / f"{self.name}.yaml").read_text().splitlines()
        return [line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), lines)]


TASKS = {
    task.name: task
    for task in (
        # Train and roll out.
        Task("compare", "experiments.tasks.compare"),
        Task("train", "experiments.tasks.train"),
        Task("rollout", "experiments.tasks.rollout"),
        Task("evaluate", "experiments.tasks.evaluate"),
        Task("force", "experiments.tasks.force"),
        Task("audit", "experiments.tasks.audit"),
        Task("policy", "experiments.tasks.policy"),
        # Reproduce the papers.
        Task("reproduce", "experiments.tasks.reproduce"),
        Task("experiment", "experiments.tasks.experiment"),
        # Simulate rollouts at any scale.
        Task("replay", "experiments.tasks.replay"),
        Task("advise", "experiments.tasks.advise.task"),
        Task("calibrate", "experiments.tasks.calibrate"),
        # Benchmarks.
        Task("bench_budgets", "experiments.bench.budgets.task"),
        Task("bench_drafter", "experiments.bench.drafter"),
        Task("bench_model_drafters", "experiments.bench.model_drafters"),
        Task("bench_self_draft", "experiments.bench.budgets.task"),
        Task("bench_sampler", "experiments.bench.sampler"),
        # Robustness.
        Task("check_gpu", "experiments.tasks.check_gpu"),
        Task("compatibility", "experiments.tasks.compatibility"),
        Task("kill_test", "experiments.tasks.kill_test"),
        Task("fault_test", "experiments.tasks.fault_test"),
        Task("soak", "experiments.tasks.soak"),
    )
}
