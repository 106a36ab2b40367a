"""The input of task=advise: a sample of the user's recorded rollouts for one engine, and the times of its passes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.replays.recorded_arms import tokens_only
from experiments.run.errors import UserError
from experiments.simulate.arms import Arm, Simulated, simulate
from experiments.simulate.hardware import STOCK, WithHost
from experiments.simulate.latency_files import DERIVED, chosen_form, step_table
from experiments.simulate.rollouts import is_text, read_rollouts
from experiments.simulate.scale import CostScaled, Scaled
from experiments.simulate.times import Form, Times
from experiments.simulate.workload import Workload, workload

DOUBT = 0.3  # drafted tokens may be dearer or cheaper than the latency model says, by this share


@dataclass(frozen=True)
class Case:
    """The rollouts of one engine, to be simulated. Each simulated request stands for `scale` real requests."""

    works: Sequence[Workload]  # responses of the sampled steps, one entry for each step
    form: Form  # predicts the time of a pass, seconds
    scale: float
    max_num_seqs: int  # real requests that the engine decodes at once
    max_tokens: int  # longest response
    draft_s: float  # seconds of drafting per request and pass
    prefill_s: float  # seconds per prompt token
    derived: bool  # True if `form` is derived from data sheets, not measured
    stock: Form | None = None  # the same for vLLM as it comes, if its times are known

    @property
    def simulated_max_num_seqs(self) -> int:
        return max(1, round(self.max_num_seqs / self.scale))

    def times(self) -> Times:
        """Return the times of the simulated engine. A simulated request takes the time of all real requests that it
        stands for."""
        return Times(
            Scaled(self.form, self.scale),
            prefill=self.prefill_s * self.scale,
            draft_request=self.draft_s * self.scale,
        )

    def simulate(self, arm: Arm) -> Simulated:
        """Simulate the sampled steps with this arm, one after the other."""
        return simulate(arm, self.works, self.times(), self.simulated_max_num_seqs, self.max_tokens)

    def as_stock(self) -> "Case":
        """The same case with the times of vLLM as it comes."""
        assert self.stock is not None
        return replace(self, form=self.stock)

    @property
    def rival(self) -> str:
        """The arm with which drafts are compared where they must break even."""
        return "none" if self.stock is None else "stock"

    def cheaper(self) -> "Case":
        """The same case with drafted tokens cheaper by the share DOUBT."""
        return replace(self, form=CostScaled(self.form, 1 - DOUBT))

    def dearer(self) -> "Case":
        """The same case with drafted tokens dearer by the share DOUBT."""
        return replace(self, form=CostScaled(self.form, 1 + DOUBT))


def build(task: Any) -> tuple[Case, list[str]]:
    """Make the case that the settings describe. Returns it with lines about it for the user. Raises UserError."""
    _check(task)
    steps = read_rollouts(Path(task.rollouts), group=int(task.group), prompt=int(task.prompt))
    longest = max(int(work.lengths.max()) for work in steps)
    if longest > task.max_tokens:
        raise UserError(f"task.max_tokens={task.max_tokens}, but a response has {longest} tokens: raise the limit")
    recorded = len(steps)
    per_engine = int(task.batch) / int(task.engines)
    steps = sample(steps, int(task.tokens), max(1, round(per_engine)))
    scale = max(1.0, per_engine / len(steps[-1]))
    if task.step_ms is None:
        form, source = chosen_form(task.latency, str(task.gpu), str(task.model))
    else:
        form, source = step_table(task.step_ms), "measured step times"
    tokens = sum(len(work.tokens) for work in steps)
    lines = [
        f"rollouts: {counted(recorded)} in {task.rollouts}; simulated: {counted(len(steps))} of "
        f"{len(steps[-1])} responses, "
        f"{tokens} tokens, mean {tokens / sum(len(w) for w in steps):.0f}, longest {longest}",
        f"engines: {task.engines}, each with {per_engine:.0f} requests per step, {task.max_num_seqs} at once; a "
        f"simulated request stands for {scale:g} real one{'s' * (scale != 1)}",
        f"time of a pass: {source}",
    ]
    if is_text(Path(task.rollouts)):
        lines.append(
            "the responses are text, so a word counts as a token; there are more real tokens, and times are longer"
        )
    if recorded == 1:
        lines.append(
            "there is only one step, so no history; with task.group=G every G responses of a problem form a step"
        )
    if line := tokens_only(steps, {}):
        lines.append(line)
    one, none = np.array(1.0), np.array(0.0)
    short_prefill, long_prefill = (float(form.predict(one, np.array(count), none)) for count in (2048.0, 4096.0))
    case = Case(
        steps,
        form,
        scale,
        int(task.max_num_seqs),
        int(task.max_tokens),
        draft_s=float(task.draft_us) * 1e-6,
        prefill_s=max(0.0, long_prefill - short_prefill) / 2048,
        derived=source.endswith(DERIVED),
        stock=replace(form, undrafted=STOCK) if isinstance(form, WithHost) else None,
    )
    return case, lines


def counted(steps: int) -> str:
    """Return a number of steps in words: "1 step", "3 steps"."""
    return f"{steps} step{'s' * (steps != 1)}"


def _check(task: Any) -> None:
    if task.rollouts is None:
        raise UserError(
            "task.rollouts=PATH is missing: give a run's folder, a JSONL file or a folder of them "
            "(experiments/simulate/rollouts.py)"
        )
    if task.visits is not None and not task.visits > 0:
        raise UserError(f"task.visits={task.visits}: must be above 0, such as 1.2")


def sample(steps: list[Workload], tokens: int, requests: int, epochs: int = 4) -> list[Workload]:
    """Cut the recorded steps down to about `tokens` tokens in all, `requests` requests a step, at most `epochs` steps.

    Siblings are the responses to one problem in one step. Only problems of the last recorded step are taken, as many as
    fit, each with its last `epochs` groups of siblings. Step k of the sample holds the k-th of these groups of every
    problem, whichever step recorded it. A group of more than `requests` siblings is cut.
    """
    groups: dict[str, list[tuple[Workload, list[int]]]] = {problem: [] for problem in steps[-1].problems}
    for work in steps:
        members = work.members()
        for problem in groups.keys() & members.keys():
            groups[problem].append((work, members[problem]))
    chosen: list[list[tuple[Workload, list[int]]]] = []  # the last groups of each chosen problem
    tokens_used = requests_used = 0
    for problem in groups:
        last_groups = [(work, ids[:requests]) for work, ids in groups[problem][-epochs:]]
        tokens_used += sum(int(work.lengths[ids].sum()) for work, ids in last_groups)
        requests_used += max(len(ids) for _, ids in last_groups)
        if chosen and (tokens_used > tokens or requests_used > requests):
            break
        chosen.append(last_groups)
    sampled = []
    for steps_left in range(max(map(len, chosen)), 0, -1):
        parts = [last_groups[-steps_left] for last_groups in chosen if len(last_groups) >= steps_left]
        names = [work.problems[i] for work, ids in parts for i in ids]
        responses = [work.response(i) for work, ids in parts for i in ids]
        sampling = [work.sampling_of(i) for work, ids in parts for i in ids]
        sampled.append(workload(names, responses, steps[-1].prompt, sampling))
    return sampled
