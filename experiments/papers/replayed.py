"""Code that the simulations of DAS's figures share: their setting, training steps cut from a workload, arms,
comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.quantities import percent
from analysis.report import Line, curves
from experiments.run.progress import Progress
from experiments.simulate.arms import Arm, Simulated, simulate
from experiments.simulate.cluster import Step
from experiments.simulate.synthesis import Synthesis
from experiments.simulate.times import PassTimes
from experiments.simulate.workload import Workload

MAX_NUM_SEQS = 256  # requests that an engine decodes at once (paper: 2,048 responses on 8 engines)
MAX_TOKENS = 16384  # most tokens of a response (paper)
FIXED = {"name": "fixed", "tokens": 16}  # budget
STEPS_PER_EPOCH = 9  # steps of an epoch of maths: 1,209 problems / 128 per step


@dataclass(frozen=True)
class Setting:
    """The settings and inputs that the simulations of all figures share."""

    task: Any
    budget: dict[str, Any]
    recorded: Workload
    synthesis: Synthesis
    times: PassTimes  # times of a pass by the paper's Fig 8
    published: dict[str, Any]  # experiments/papers/published.json
    folder: Path  # for figures
    progress: Progress


def training_steps(work: Workload, steps: int, batch: int, group: int) -> list[Workload]:
    """Cut a workload into training steps. Each has the next `group` responses to each of `batch` problems."""
    problems = list(work.members().values())
    per_epoch = len(problems) // batch
    parts = []
    for step in range(steps):
        epoch, number = divmod(step, per_epoch)
        chosen = problems[number * batch : (number + 1) * batch]
        parts.append(work.part([i for ids in chosen for i in ids[epoch * group : (epoch + 1) * group]]))
    return parts


def simulated(
    arm: Arm, works: Sequence[Workload], times: PassTimes, steps_per_epoch: int = 1, max_tokens: int = MAX_TOKENS
) -> Simulated:
    """Simulate an arm on one engine of the paper."""
    return simulate(arm, works, times, MAX_NUM_SEQS, max_tokens, steps_per_epoch)


def rollout_seconds(steps: Sequence[Step], first: int, last: int) -> float:
    """Return the sum of the rollout times of steps `first` to `last`, counted from 1."""
    return sum(step.rollout_s for step in steps[first - 1 : last])


@dataclass(frozen=True)
class Outcome:
    """An arm's rollout seconds in each epoch: without drafts (`none`) and with drafts (`drafted`)."""

    name: str
    none: np.ndarray
    drafted: np.ndarray
    tokens_per_pass: float


class Batch:
    """One of an epoch's nine batches of maths problems, in all epochs. It stands for all nine: they hardly interact.

    works: the batch's responses in each epoch. weights: the number of steps of each epoch.
    """

    def __init__(self, setting: Setting) -> None:
        self.steps, problems = int(setting.task.maths_steps), int(setting.task.maths_batch)
        self.epochs = -(-self.steps // STEPS_PER_EPOCH)
        made = setting.synthesis.make(problems, 16 * self.epochs, MAX_TOKENS, seed=1)
        self.works = training_steps(made, self.epochs, problems, 16)
        self.weights = np.array(
            [min(STEPS_PER_EPOCH, self.steps - STEPS_PER_EPOCH * epoch) for epoch in range(self.epochs)]
        )
        self.drawn: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # curves of the figure
        self.setting = setting

    def tokens_per_pass(self, steps: Sequence[Step]) -> float:
        """Return the emitted tokens per target pass of a request, over all steps."""
        return float(self.weights @ [s.tokens for s in steps] / (self.weights @ [s.passes for s in steps]))

    def line(self, outcome: Outcome, label: str) -> Line:
        """Return an arm's line: its reduction of rollout time by epoch and in all steps. Prints and draws it, too."""
        reduction = 1 - outcome.drafted / outcome.none
        saved = " / ".join(percent(value) for value in reduction)
        in_all = percent(1 - float((self.weights @ outcome.drafted) / (self.weights @ outcome.none)))
        ours = f"{saved}; {in_all} in all, {outcome.tokens_per_pass:.2f} tokens per pass"
        self.drawn[outcome.name] = np.arange(1, self.epochs + 1), 100 * reduction
        self.setting.progress.note(f"maths, {outcome.name}: {ours}")
        return Line(label, replay=ours)

    def figure(self, name: str, title: str) -> str:
        """Draw the reductions of all lines into the setting's folder. Returns the file's name."""
        return curves(self.setting.folder / name, self.drawn, "epoch", "reduction of rollout time (%)", title)


def seconds(steps: Sequence[Step]) -> np.ndarray:
    """Return the rollout time of each step, in seconds."""
    return np.array([step.rollout_s for step in steps])
