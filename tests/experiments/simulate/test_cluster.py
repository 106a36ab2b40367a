"""Rollouts on several engines: when they end; requests that a Dispatcher places while they run: near the bound that
none beats."""

import heapq
from collections.abc import Sequence

import numpy as np
import pytest

from das.cluster.dispatcher import Dispatcher, QueuedRequest
from experiments.simulate.engine import PlainEngine, simulate_rollout
from experiments.simulate.times import Affine, Times
from experiments.simulate.workload import Workload, workload

TIMES = Times(Affine(7.8e-3, 28e-6))  # the paper's Fig 8, 0-500 tokens


def long_tailed(seed: int, problems: int, group: int) -> Workload:
    random = np.random.default_rng(seed)
    centre = random.normal(7.2, 0.6, problems)
    lengths = np.exp(centre[:, None] + random.normal(0, 0.4, (problems, group))).clip(1, 16384).astype(int)
    names = [str(p) for p in range(problems) for _ in range(group)]
    return workload(names, [np.zeros(n, np.int32) for n in lengths.ravel()])


def lower_bound(work: Workload, engines: Sequence[PlainEngine]) -> float:
    """Seconds that a rollout without drafts takes at least, wherever its requests are placed.

    It is the larger of two times: that of the longest request, alone on an engine, and that of all passes on engines
    that are always full, with the least context that their requests can have.
    """
    times, slots = engines[0].times, engines[0].max_num_seqs
    alone_s = float(times.plain(1, work.prompt, int(work.lengths.max())).sum())
    full = np.full(len(work), float(slots))
    pass_s = times.form.predict(full, full, slots * (work.prompt + (work.lengths - 1) / 2))
    return max(alone_s, float(work.lengths @ pass_s) / slots / len(engines))


def test_several_engines_end_when_the_slowest_does() -> None:
    work = long_tailed(0, 20, 4)
    placed = [list(range(e, len(work), 3)) for e in range(3)]
    engines = [PlainEngine(TIMES, 8) for _ in range(3)]
    step = simulate_rollout(work, engines, placed, 1)
    alone = [simulate_rollout(work, [PlainEngine(TIMES, 8)], [requests], 1).rollout_s for requests in placed]
    assert step.rollout_s == pytest.approx(max(alone))
    assert [sorted(engine.finished) for engine in engines] == placed
    assert lower_bound(work, engines) <= step.rollout_s


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
