"""Placement of groups on engines, re-placement of waiting requests, the lower bound."""

import numpy as np
import pytest

from das.budget.latency_forms import Affine
from das.replay.cluster import PLACEMENTS, place, roll_out
from das.replay.engine import PlainEngine
from das.replay.times import Times
from das.replay.workload import Workload, workload

TIMES = Times(Affine(7.8e-3, 28e-6))  # the paper's Fig 8, 0-500 tokens


def long_tailed(seed: int, problems: int, group: int) -> Workload:
    random = np.random.default_rng(seed)
    centre = random.normal(7.2, 0.6, problems)
    lengths = np.exp(centre[:, None] + random.normal(0, 0.4, (problems, group))).clip(1, 16384).astype(int)
    names = [str(p) for p in range(problems) for _ in range(group)]
    return workload(names, [np.zeros(n, np.int32) for n in lengths.ravel()])


@pytest.mark.parametrize("how", PLACEMENTS)
def test_groups_stay_whole_and_nobody_is_lost(how: str) -> None:
    work = long_tailed(0, 20, 4)
    placed = place(work.lengths, work.problems, 3, how)
    assert sorted(i for mine in placed for i in mine) == list(range(80))
    homes = [{work.problems[i] for i in mine} for mine in placed]
    assert sum(len(home) for home in homes) == 20


@pytest.mark.parametrize("seed", range(3))
def test_longest_first_ends_near_the_bound(seed: int) -> None:
    """8 engines of 64 slots, 1024 requests: engines do not start with everything."""
    work = long_tailed(seed, 128, 8)
    ends = {}
    for how in ("round_robin", "longest_first"):
        engines = [PlainEngine(TIMES, 64) for _ in range(8)]
        placed = place(work.lengths, work.problems, 8, how, slots=64, token=28e-6 / 7.8e-3)
        ends[how] = roll_out(work, engines, placed, 1)
    assert ends["longest_first"].rollout_s <= 1.05 * ends["longest_first"].bound
    assert ends["longest_first"].rollout_s < ends["round_robin"].rollout_s


def test_idle_engines_take_waiting_requests() -> None:
    work = workload([str(i) for i in range(8)], [np.zeros(100, np.int32)] * 8)
    times = []
    for replace in (False, True):
        engines = [PlainEngine(TIMES, 2) for _ in range(4)]
        step = roll_out(work, engines, [list(range(8)), [], [], []], 1, replace=replace)
        assert sum(len(engine.finished) for engine in engines) == 8
        times.append(step.rollout_s)
    assert times[1] == pytest.approx(times[0] / 4)


def test_bound_holds() -> None:
    for seed in range(3):
        work = long_tailed(seed, 16, 8)
        for how in PLACEMENTS:
            engines = [PlainEngine(TIMES, 16) for _ in range(4)]
            step = roll_out(work, engines, place(work.lengths, work.problems, 4, how), 1)
            assert step.rollout_s >= step.bound
    with pytest.raises(ValueError, match="placement=best"):
        place(work.lengths, work.problems, 4, "best")
