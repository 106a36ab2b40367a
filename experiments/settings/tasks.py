"""The tasks that `python run.py task=NAME` can do: the settings of each, the module that does it, and what other parts
of a run must know of it.

configs/task/NAME.yaml says what the task does, at its top, and what its settings mean. `python run.py --help`
and docs/reference.md are made from TASKS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import Field

from experiments.run.errors import CONFIGS
from experiments.settings.checked import Choice, Named, Number, Whole
from experiments.settings.groups import Count, Processes, Size, Steps


class OfTask(Named):
    lock_step: bool = True  # a comparison's; configs/setting sets it whatever the task


class Advise(OfTask):
    rollouts: str | None
    latency: str | None
    group: Whole
    prompt: Whole
    gpu: str
    model: str
    step_ms: list[list[Number]] | None
    engines: Count
    batch: Count
    max_num_seqs: Count
    max_tokens: Count
    tokens: Count
    draft_us: Number
    rest_s: Number | None
    visits: Annotated[float, Field(ge=0.01, le=10**6)] | None


class BenchDrafter(OfTask):
    traces: list[str]
    group: Processes
    problems: Count
    tokens: Count
    array_sizes: list[Count]


class BenchModelDrafters(OfTask):
    problems: Count
    samples: Count
    max_tokens: Count
    tokens: Count
    drafters: list[Literal["w8", "w4", "draft_model", "eagle3"]]
    trained: str | None


class Calibrate(OfTask):
    live: list[Count]
    drafts: list[Whole]
    passes: Count
    rounds: Count


class CheckGpu(OfTask):
    folder: str
    parts: list[str] | None
    device: Literal["auto", "cuda", "cpu"]
    seconds: Number
    recorded: str | None


class Compare(OfTask):
    lock_step: bool
    train: bool
    train_once: bool
    recorded: str | None


class Evaluate(OfTask):
    problems: Count | None
    samples: Count
    k: list[Size] | None


class Experiment(OfTask):
    folder: str


class Recordings(OfTask):
    folder: str
    source: str
    only: list[str] | None


class Reproduce(OfTask):
    folder: str
    traces: str
    run_length: Annotated[float, Field(ge=1, le=2**31)]
    draft_us: Number
    problems: Count
    maths_steps: Count
    maths_batch: Count
    code_steps: Count
    scope_problems: Count


class Rollout(OfTask):
    steps: Steps


class Train(OfTask):
    group: str | None


# ---- the tasks ----

COMMAND = "python run.py "


@dataclass(frozen=True)
class Task:
    """A task: its name, its settings, and the module whose function, called with (config, composed, folder), does the
    work."""

    name: str
    settings: type[OfTask]
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
        lines = (CONFIGS / "task" / f"{self.name}.yaml").read_text().splitlines()
        return [line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), lines)]


TASKS = {
    task.name: task
    for task in (
        # Train and roll out.
        Task("compare", Compare, "experiments.compare.comparison", trains=True, rolls_out=True),
        Task("train", Train, "experiments.tasks.train", trains=True, rolls_out=True),
        Task("rollout", Rollout, "experiments.tasks.train", "roll_out", rolls_out=True),
        Task("evaluate", Evaluate, "experiments.tasks.evaluate"),
        # Reproduce the papers.
        Task("reproduce", Reproduce, "experiments.tasks.reproduce", trains=True),
        Task("experiment", Experiment, "experiments.tasks.reproduce", "experiment", trains=True),
        Task("recordings", Recordings, "experiments.papers.recordings"),
        # Simulate rollouts at any scale.
        Task("advise", Advise, "experiments.tasks.advise"),
        Task("calibrate", Calibrate, "experiments.measure.calibrate"),
        # Benchmarks.
        Task("bench_drafter", BenchDrafter, "experiments.measure.drafter"),
        Task("bench_model_drafters", BenchModelDrafters, "experiments.measure.model_drafters"),
        # Robustness.
        Task("check_gpu", CheckGpu, "experiments.gpu.check_gpu"),
    )
}
TASK = Choice("task", {task.name: task.settings for task in TASKS.values()})
# The tasks that train arms themselves: these have checkpoints, from which a run goes on, and heads, which are made.
RESUMED = [task.name for task in TASKS.values() if task.trains and task.rolls_out]


def usage() -> str:
    """Return the text that `python run.py --help` prints."""
    tasks = "\n".join(f"  {task.name:<22s}{task.help}" for task in TASKS.values())
    return (
        f"usage: {COMMAND}[task=NAME] [KEY=VALUE ...]    (task=compare if none is named)\n\ntasks:\n{tasks}\n\n"
        "configs/ lists every KEY with its unit or source. docs/reference.md has examples.\n"
        "`python run.py task=NAME --cfg job` prints a task's config; `python run.py --hydra-help` prints Hydra's flags."
    )
