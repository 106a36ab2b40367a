"""Simulates the time of a rollout on several engines. Each engine gets all its requests at the start."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.simulate.engine import Engine
from experiments.simulate.text_engine import TextEngine
from experiments.simulate.workload import Workload


@dataclass(frozen=True)
class Step:
    """The costs of one rollout. Times are in seconds."""

    rollout_s: float
    tokens: int
    passes: int  # number of target passes, summed over requests
    num_drafted: int
    num_accepted: int
    timelines: tuple[dict[str, np.ndarray], ...]  # for each engine: see Timeline.arrays

    @property
    def tokens_per_pass(self) -> float:
        """The mean number of tokens that a target pass emitted for a request."""
        return self.tokens / self.passes


def simulate_rollout(
    work: Workload,
    engines: Sequence[Engine],
    placed: Sequence[Sequence[int]],
    next_history_tick: int,
) -> Step:
    """Simulate the rollout of one step. The engine with the earliest clock runs its next pass, until all are done.

    placed: the requests of each engine. next_history_tick: the drafters' history tick after the step.
    """
    for engine, requests in zip(engines, placed, strict=True):
        engine.begin_step(work, requests)
    events = [(0.0, e) for e, engine in enumerate(engines) if engine.waiting]
    heapq.heapify(events)
    while events:
        _, e = heapq.heappop(events)
        engine = engines[e]
        if engine.live or engine.waiting:
            engine.advance()
            heapq.heappush(events, (engine.now, e))
    for engine in engines:
        engine.close_step()
    drafters = [engine.draft_round.drafter for engine in engines if isinstance(engine, TextEngine)]
    for drafter in {id(drafter): drafter for drafter in drafters}.values():  # engines may share one
        drafter.end_step(next_history_tick)
    return Step(
        rollout_s=max(engine.now for engine in engines),
        tokens=len(work.tokens),
        passes=sum(engine.passes for engine in engines),
        num_drafted=sum(engine.num_drafted for engine in engines),
        num_accepted=sum(engine.num_accepted for engine in engines),
        timelines=tuple(engine.timeline.arrays() for engine in engines),
    )
