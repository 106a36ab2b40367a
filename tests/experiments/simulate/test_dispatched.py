"""Rollouts of simulated engines whose requests a Dispatcher places while they run: near the bound that none beats."""

import heapq
from collections.abc import Sequence

import pytest
from test_cluster import TIMES, long_tailed, lower_bound

from das.cluster.dispatcher import Dispatcher, QueuedRequest
from experiments.simulate.engine import PlainEngine, simulate_rollout
from experiments.simulate.workload import Workload


def requests_of(work: Workload) -> list[QueuedRequest]:
    lengths = zip(work.problems, work.lengths.tolist(), strict=True)
    return [QueuedRequest(i, problem, length) for i, (problem, length) in enumerate(lengths)]


def plain(number: int, slots: int) -> list[PlainEngine]:
    return [PlainEngine(TIMES, slots) for _ in range(number)]


def dispatched_s(work: Workload, engines: Sequence[PlainEngine], placement: Dispatcher) -> float:
    """Seconds of a rollout in which an engine asks for requests whenever one of its own ends. Answers cost no time."""
    for e, engine in enumerate(engines):
        engine.begin_step(work, [])
        placement.joined(e, engine.max_num_seqs)
    delivered = [0] * len(engines)
    events = [(0.0, e) for e in range(len(engines))]
    while events:
        _, e = heapq.heappop(events)
        engine = engines[e]
        for request in list(engine.finished)[delivered[e] :]:
            placement.finished(e, request)
        delivered[e] = len(engine.finished)
        engine.waiting.extend(placement.take(e))
        if engine.live or engine.waiting:
            engine.advance()
            heapq.heappush(events, (engine.now, e))
    assert placement.done
    return max(engine.now for engine in engines)


def test_one_engine_takes_as_long_as_without_a_dispatcher() -> None:
    work = long_tailed(0, 8, 4)
    order = Dispatcher(requests_of(work))
    order.joined(0, len(work))
    placed = simulate_rollout(work, plain(1, 4), [order.take(0)], 1)
    assert dispatched_s(work, plain(1, 4), Dispatcher(requests_of(work), 0)) == pytest.approx(placed.rollout_s)


@pytest.mark.parametrize("seed", range(3))
def test_better_than_placing_everything_at_the_start(seed: int) -> None:
    work = long_tailed(seed, 128, 8)
    dealt = [[i for i, problem in enumerate(work.problems) if int(problem) % 8 == e] for e in range(8)]
    static = simulate_rollout(work, plain(8, 32), dealt, 1)
    engines = plain(8, 32)
    rollout_s = dispatched_s(work, engines, Dispatcher(requests_of(work), 0))
    bound = lower_bound(work, engines)
    assert bound <= rollout_s < 1.1 * bound
    assert rollout_s < static.rollout_s
