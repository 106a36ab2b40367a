"""What task=advise is asked about: a sample of recorded rollouts for one engine, and what its passes cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from das.budget import make_budget
from das.budget.latency_forms import Form
from das.drafter import HistoryDrafter
from das.replay.cluster import Step, simulate_rollout
from das.replay.engine import Engine
from das.replay.hardware import VERIFY_TOKEN
from das.replay.scale import CostScaled, Scaled
from das.replay.text_engine import TextEngine
from das.replay.times import Times
from das.replay.workload import Workload, workload
from experiments.recorded.latency_files import DERIVED, chosen_form, step_table
from experiments.recorded.rollouts import is_text, read_rollouts
from experiments.run.checks import at_least_one
from experiments.run.errors import UserError

DOUBT = 0.3  # drafted tokens may cost this much less or more than the latency model says


@dataclass(frozen=True)
class Case:
    """One engine's rollouts, each simulated request standing for `scale`; `slots` count real requests."""

    works: Sequence[Workload]
    form: Form
    scale: float
    slots: int
    most: int
    draft_s: float  # a request and pass
    prefill_s: float  # a prompt token
    derived: bool  # nobody measured the form

    @property
    def simulated_slots(self) -> int:
        return max(1, round(self.slots / self.scale))

    def times(self) -> Times:
        """What one request costs in drafting and for its prompt is paid by each it stands for."""
        return Times(
            Scaled(self.form, self.scale),
            prefill=self.prefill_s * self.scale,
            draft_request=self.draft_s * self.scale,
        )

    def simulate(self, engine: Engine) -> list[Step]:
        return [simulate_rollout(work, [engine], [range(len(work))], i + 1) for i, work in enumerate(self.works)]

    def text(self, budget: dict[str, Any], **drafter: Any) -> tuple[list[Step], TextEngine]:
        """Steps with the history drafter, and the engine as the last one left it."""
        history = HistoryDrafter(**drafter)
        engine = TextEngine(self.times(), self.simulated_slots, history, make_budget(budget), self.most)
        return self.simulate(engine), engine

    def cheaper(self) -> "Case":
        """Drafted tokens cost DOUBT less."""
        return replace(self, form=CostScaled(self.form, 1 - DOUBT))

    def dearer(self) -> "Case":
        """Drafted tokens cost DOUBT more. Where nobody measured, also what verifying cost elsewhere, of which the
        roofline of data sheets knows nothing."""
        return replace(self, form=CostScaled(self.form, 1 + DOUBT, VERIFY_TOKEN if self.derived else 0.0))


def build(task: DictConfig) -> tuple[Case, list[str]]:
    """The case, and lines that say what was taken. UserError for what cannot be."""
    if task.rollouts is None:
        raise UserError(
            "task.rollouts=PATH is missing: give a run's folder, a JSONL file or a folder of them "
            "(experiments/recorded/rollouts.py)"
        )
    at_least_one(task, "engines", "slots", "tokens", "most", "batch")
    for name in ("draft_us", "prompt", "group", "rest_s"):
        if task[name] is not None and task[name] < 0:
            raise UserError(f"task.{name}={task[name]}: must not be negative")
    steps = read_rollouts(Path(task.rollouts), group=int(task.group), prompt=int(task.prompt))
    longest = max(int(work.lengths.max()) for work in steps)
    if longest > task.most:
        raise UserError(f"task.most={task.most}, but a response has {longest} tokens: raise the limit")
    recorded = len(steps)
    per_engine = int(task.batch) / int(task.engines)
    steps = sample(steps, int(task.tokens), max(1, round(per_engine)))
    scale = max(1.0, per_engine / len(steps[-1]))
    if task.step_ms is None:
        form, source = chosen_form(task.latency, str(task.gpu), str(task.model))
    elif task.latency is not None:
        raise UserError("task.step_ms and task.latency are both given: give one")
    else:
        form, source = step_table(task.step_ms), "measured step times"
    tokens = sum(len(work.tokens) for work in steps)
    about = [
        f"rollouts: {recorded} steps in {task.rollouts}; simulated: {len(steps)} steps of {len(steps[-1])} responses, "
        f"{tokens} tokens, mean {tokens / sum(len(w) for w in steps):.0f}, longest {longest}",
        f"engines: {task.engines}, each with {per_engine:.0f} requests a step and {task.slots} slots; every simulated "
        f"request stands for {scale:.1f}",
        f"time of a pass: {source}",
    ]
    if is_text(Path(task.rollouts)):
        about.append("the responses are text: a word counts as a token, real tokens are more and times longer")
    if recorded == 1:
        about.append("one step: no history yet; task.group=G makes steps of a problem's next G responses")
    one, none = np.array(1.0), np.array(0.0)
    few, many = (float(form.predict(one, np.array(tokens), none)) for tokens in (2048.0, 4096.0))
    case = Case(
        steps,
        form,
        scale,
        int(task.slots),
        int(task.most),
        draft_s=float(task.draft_us) * 1e-6,
        prefill_s=max(0.0, many - few) / 2048,
        derived=source.endswith(DERIVED),
    )
    return case, about


def sample(steps: list[Workload], tokens: int, requests: int, epochs: int = 4) -> list[Workload]:
    """Of the last step's problems as many as `tokens`, and `requests` in a step, allow, each with its last groups of
    siblings, at most `epochs`: step k of the sample holds the problems' k-th groups, in whatever step they were
    recorded. Of a group larger than `requests`, that many."""
    groups: dict[str, list[tuple[Workload, list[int]]]] = {problem: [] for problem in steps[-1].problems}
    for work in steps:
        members: dict[str, list[int]] = {}
        for i, problem in enumerate(work.problems):
            members.setdefault(problem, []).append(i)
        for problem in groups.keys() & members.keys():
            groups[problem].append((work, members[problem]))
    chosen: list[list[tuple[Workload, list[int]]]] = []
    used = siblings = 0
    for problem in groups:
        mine = [(work, ids[:requests]) for work, ids in groups[problem][-epochs:]]
        used += sum(int(work.lengths[ids].sum()) for work, ids in mine)
        siblings += max(len(ids) for _, ids in mine)
        if chosen and (used > tokens or siblings > requests):
            break
        chosen.append(mine)
    found = []
    for back in range(max(map(len, chosen)), 0, -1):
        parts = [mine[-back] for mine in chosen if len(mine) >= back]
        names = [work.problems[i] for work, ids in parts for i in ids]
        found.append(workload(names, [work.response(i) for work, ids in parts for i in ids], steps[-1].prompt))
    return found
