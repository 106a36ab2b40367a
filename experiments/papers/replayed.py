"""The replays of DAS's figures share a setting, training steps cut from a workload, and arms."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from das.budget import make_budget
from das.drafter import HistoryDrafter
from das.replay.cluster import Step, simulate_rollout
from das.replay.engine import Engine, PlainEngine
from das.replay.text_engine import TextEngine
from das.replay.times import Times
from das.replay.workload import Workload
from experiments.replay.synthesis import Synthesis
from experiments.run.progress import Progress

MAX_NUM_SEQS = 256  # requests that an engine decodes at once (paper: 2,048 responses on 8 engines)
MAX_TOKENS = 16384  # of a response (paper)


@dataclass(frozen=True)
class Setting:
    """What every figure is made with."""

    task: DictConfig
    budget: dict[str, Any]
    recorded: Workload
    synthesis: Synthesis
    times: Times  # of a pass, by the paper's Fig 8
    published: dict[str, Any]  # experiments/papers/published.json
    folder: Path  # for figures
    progress: Progress


def training_steps(work: Workload, steps: int, batch: int, group: int) -> list[Workload]:
    """Training steps of `batch` problems x the next `group` responses of each, epoch after epoch."""
    problems = list(work.members().values())
    per_epoch = len(problems) // batch
    parts = []
    for step in range(steps):
        epoch, number = divmod(step, per_epoch)
        chosen = problems[number * batch : (number + 1) * batch]
        parts.append(work.part([i for ids in chosen for i in ids[epoch * group : (epoch + 1) * group]]))
    return parts


def simulate_arm(
    works: Sequence[Workload],
    times: Times,
    budget: dict[str, Any] | None,
    steps_per_epoch: int,
    max_tokens: int = MAX_TOKENS,
    branch_blocks: int = 0,
    **drafter: Any,
) -> list[Step]:
    """Steps of an arm on one engine. budget None: without speculation. drafter: options of the history drafter.

    The drafter's history tick moves once per epoch.
    """
    engine: Engine = PlainEngine(times, MAX_NUM_SEQS)
    if budget is not None:
        engine = TextEngine(
            times, MAX_NUM_SEQS, HistoryDrafter(**drafter), make_budget(budget), max_tokens, branch_blocks=branch_blocks
        )
    return [
        simulate_rollout(work, [engine], [range(len(work))], (i + 1) // steps_per_epoch) for i, work in enumerate(works)
    ]


def rollout_seconds(steps: Sequence[Step], first: int, last: int) -> float:
    """Sum of the rollout times of steps `first` to `last`, counted from 1."""
    return sum(step.rollout_s for step in steps[first - 1 : last])
