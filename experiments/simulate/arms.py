"""Arms of a simulation as data: how each drafts. The papers' tables and task=advise list theirs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from das.budget import make_budget
from das.drafter import Drafter, HistoryDrafter
from experiments.simulate.cluster import Step, simulate_rollout
from experiments.simulate.engine import Engine, PlainEngine
from experiments.simulate.text_engine import TextEngine
from experiments.simulate.times import Times
from experiments.simulate.workload import Workload


@dataclass(frozen=True)
class Arm:
    """How an arm drafts. budget: its settings; None: no speculation. drafter: makes a new one."""

    budget: Mapping[str, Any] | None = None
    drafter: Callable[[], Drafter] = HistoryDrafter

    def engine(self, times: Times, max_num_seqs: int, max_tokens: int) -> Engine:
        """Make a simulated engine. max_tokens: tokens of the longest response."""
        if self.budget is None:
            return PlainEngine(times, max_num_seqs)
        return TextEngine(times, max_num_seqs, self.drafter(), make_budget(self.budget), max_tokens)


class Simulated(NamedTuple):
    """The steps of an arm with their times, and its engine after the last one."""

    steps: list[Step]
    engine: Engine


def simulate(
    arm: Arm, works: Sequence[Workload], times: Times, max_num_seqs: int, max_tokens: int, steps_per_epoch: int = 1
) -> Simulated:
    """Simulate an arm on one engine, step by step. The history's clock (its tick) moves once per epoch."""
    engine = arm.engine(times, max_num_seqs, max_tokens)
    steps = [
        simulate_rollout(work, [engine], [range(len(work))], (i + 1) // steps_per_epoch) for i, work in enumerate(works)
    ]
    return Simulated(steps, engine)
