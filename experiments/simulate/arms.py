"""Arms of a simulation as data: how each drafts. The papers' tables and task=advise list theirs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from das.budget import make_budget
from das.drafter import Drafter, HistoryDrafter
from das.models.hybrid import Hybrid
from experiments.simulate.cluster import Step, simulate_rollout
from experiments.simulate.engine import Engine, PlainEngine
from experiments.simulate.model_on_text import CopyOnText
from experiments.simulate.text_engine import TextEngine
from experiments.simulate.times import Form, Times
from experiments.simulate.workload import Workload


@dataclass(frozen=True)
class Copy:
    """A copy of the policy that drafts beside the drafter. For rates, price and most_live see CopyOnText."""

    rates: Sequence[float]
    price: Form
    passes: int = 4  # the most draft passes for a pass of the policy; 4 in arm das_self
    most_live: int = 2**31


@dataclass(frozen=True)
class Arm:
    """How an arm drafts. budget: its settings; None: no speculation. drafter: makes a new one. copy: None for none."""

    budget: Mapping[str, Any] | None = None
    drafter: Callable[[], Drafter] = HistoryDrafter
    copy: Copy | None = None
    branch_blocks: int = 0

    def engine(self, times: Times, max_num_seqs: int, max_tokens: int) -> Engine:
        """Make a simulated engine. max_tokens: tokens of the longest response."""
        if self.budget is None:
            return PlainEngine(times, max_num_seqs)
        budget, hybrid, copy = make_budget(self.budget), None, self.copy
        if copy is not None:
            hybrid = Hybrid(CopyOnText(copy.rates, copy.price, copy.most_live), copy.passes, budget.worth)
        return TextEngine(
            times, max_num_seqs, self.drafter(), budget, max_tokens, branch_blocks=self.branch_blocks, hybrid=hybrid
        )


class Simulated(NamedTuple):
    """The steps of an arm with their times, its engine after the last one, and the passes of its copy."""

    steps: list[Step]
    engine: Engine
    draft_passes: int


def simulate(
    arm: Arm, works: Sequence[Workload], times: Times, max_num_seqs: int, max_tokens: int, steps_per_epoch: int = 1
) -> Simulated:
    """Simulate an arm on one engine, step by step. The history's clock (its tick) moves once per epoch."""
    engine = arm.engine(times, max_num_seqs, max_tokens)
    steps, draft_passes = [], 0
    for i, work in enumerate(works):
        steps.append(simulate_rollout(work, [engine], [range(len(work))], (i + 1) // steps_per_epoch))
        draft_passes += engine.draft_passes if isinstance(engine, TextEngine) else 0
    return Simulated(steps, engine, draft_passes)
