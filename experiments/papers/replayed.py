"""What the replays of DAS's figures share: recorded text, steps made of it, arms."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from das.budget import make_budget
from das.drafter import HistoryDrafter
from das.replay.cluster import Step, simulate_rollout
from das.replay.engine import Engine, PlainEngine
from das.replay.synthesis import Synthesis
from das.replay.text_engine import TextEngine
from das.replay.times import Times
from das.replay.workload import Workload, workload
from experiments.recorded.rollouts import read_rollouts
from experiments.run.errors import UserError
from experiments.run.progress import Progress

VARIANTS = {"steer_r1d_qwen14b_pos0to3": 4}  # prompts of each problem, one after the other


@dataclass(frozen=True)
class Setting:
    """What every figure is made with. times: a pass by the paper's Fig 8."""

    task: DictConfig
    budget: dict[str, Any]
    recorded: Workload
    synthesis: Synthesis
    times: Times
    published: dict[str, Any]
    folder: Path
    say: Progress


def sources(traces: Path, problems: int) -> Workload:
    """The first problems of each recorded trace of long chains of thought, each trace with token ids of its own.

    One trace has four prompts of each problem, which differ by a few words: the first of them is taken.
    """
    names = ("areal_deepscaler_base", "areal_nemotron_base", "steer_r1d_qwen14b_pos0to3")
    files = [traces / f"{name}.jsonl.gz" for name in names]
    if not all(file.exists() for file in files):
        raise UserError(f"task.traces={traces}: the recorded traces {', '.join(names)} are not there")
    ids, texts, offset = [], [], 0
    for name, file in zip(names, files, strict=True):
        (whole,) = read_rollouts(file)
        distinct = list(dict.fromkeys(whole.problems))[:: VARIANTS.get(name, 1)]
        chosen = set(distinct[:problems])
        for i, problem in enumerate(whole.problems):
            if problem in chosen:
                ids.append(f"{name}/{problem}")
                texts.append(whole.response(i) + offset)
        offset += int(whole.tokens.max()) + 1
    return workload(ids, texts)


def steps_of(whole: Workload, steps: int, batch: int, group: int) -> list[Workload]:
    """Training steps over a workload whose problems' responses lie in a row: epochs of batches of problems."""
    members: dict[str, list[int]] = {}
    for i, problem in enumerate(whole.problems):
        members.setdefault(problem, []).append(i)
    problems = list(members.values())
    per_epoch = len(problems) // batch
    found = []
    for step in range(steps):
        epoch, at = divmod(step, per_epoch)
        chosen = problems[at * batch : (at + 1) * batch]
        found.append(whole.part([i for ids in chosen for i in ids[epoch * group : (epoch + 1) * group]]))
    return found


def arm(
    works: Sequence[Workload],
    times: Times,
    slots: int,
    budget: dict[str, Any] | None,
    epoch: int,
    most: int,
    **drafter: Any,
) -> list[Step]:
    """Steps of an arm on one engine; budget None: no speculation. epoch: steps until the drafter's clock moves."""
    engine: Engine = PlainEngine(times, slots)
    if budget is not None:
        history = HistoryDrafter(**drafter)
        engine = TextEngine(times, slots, history, make_budget(budget), most)
    return [simulate_rollout(work, [engine], [range(len(work))], (i + 1) // epoch) for i, work in enumerate(works)]


def seconds(steps: Sequence[Step], first: int, last: int) -> float:
    return sum(step.rollout_s for step in steps[first - 1 : last])


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"
