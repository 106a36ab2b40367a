"""Arms of a simulation as data: how each drafts. The papers' tables and task=advise list theirs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from das.budget import make_budget
from das.draft_round import planned_rows
from das.drafter import Drafter, HistoryDrafter
from experiments.simulate.cluster import Step, simulate_rollout
from experiments.simulate.engine import Engine, PlainEngine
from experiments.simulate.text_engine import TextEngine
from experiments.simulate.times import PassTimes
from experiments.simulate.workload import Workload

# On a GPU das drafts at most 8 tokens for a request, and keeps a pass within its largest graph (engine/patches/gpu.py).
DRAFTED, GRAPHS = 8, 768


@dataclass(frozen=True)
class Arm:
    """How an arm drafts. budget: its settings; None: no speculation. drafter: makes a new one. ahead: whether passes
    are launched before their drafts are known, as on a GPU."""

    budget: Mapping[str, Any] | None = None
    drafter: Callable[[], Drafter] = HistoryDrafter
    ahead: bool = False

    def engine(self, times: PassTimes, max_num_seqs: int, max_tokens: int, stands_for: float = 1.0) -> Engine:
        """Make a simulated engine. max_tokens: tokens of the longest response. stands_for: real requests for which each
        simulated one stands."""
        if self.budget is None:
            return PlainEngine(times, max_num_seqs)
        budget, drafter = make_budget(self.budget), self.drafter()
        if not self.ahead:
            return TextEngine(times, max_num_seqs, drafter, budget, max_tokens)
        drafted, rows = min(DRAFTED, budget.max_draft_tokens), max(1, round(GRAPHS / stands_for))
        return TextEngine(times, max_num_seqs, drafter, budget, max_tokens, "", drafted, rows, planned_rows)


class Simulated(NamedTuple):
    """The steps of an arm with their times, and its engine after the last one."""

    steps: list[Step]
    engine: Engine


def simulate(
    arm: Arm,
    works: Sequence[Workload],
    times: PassTimes,
    max_num_seqs: int,
    max_tokens: int,
    steps_per_epoch: int = 1,
    stands_for: float = 1.0,
) -> Simulated:
    """Simulate an arm on one engine, step by step. The history's clock (its tick) moves once per epoch. For the other
    arguments see Arm.engine."""
    engine = arm.engine(times, max_num_seqs, max_tokens, stands_for)
    steps = [
        simulate_rollout(work, [engine], [range(len(work))], (i + 1) // steps_per_epoch) for i, work in enumerate(works)
    ]
    return Simulated(steps, engine)
