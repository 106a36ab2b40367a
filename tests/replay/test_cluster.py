"""Placement of groups on engines, moving of waiting requests, the lower bound, shared and private histories."""

from itertools import product

import numpy as np
import pytest

from das.budget import make_budget
from das.budget.latency_forms import Affine
from das.budget.remaining import RemainingLength
from das.drafter import HistoryDrafter
from das.replay.cluster import PLACEMENTS, place, predicted_lengths, simulate_rollout
from das.replay.engine import PlainEngine
from das.replay.text_engine import TextEngine
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
    assert sorted(i for requests in placed for i in requests) == list(range(80))
    problems_of_engines = [{work.problems[i] for i in requests} for requests in placed]
    assert sum(len(problems) for problems in problems_of_engines) == 20


@pytest.mark.parametrize("seed", range(3))
def test_longest_first_ends_near_the_bound(seed: int) -> None:
    """8 engines that decode 64 requests each, and 1024 requests: most requests wait at first."""
    work = long_tailed(seed, 128, 8)
    ends = {}
    for how in ("round_robin", "longest_first"):
        engines = [PlainEngine(TIMES, 64) for _ in range(8)]
        placed = place(work.lengths, work.problems, 8, how, max_num_seqs=64, token=28e-6 / 7.8e-3)
        ends[how] = simulate_rollout(work, engines, placed, 1)
    assert ends["longest_first"].rollout_s <= 1.1 * ends["longest_first"].bound
    assert ends["longest_first"].rollout_s < ends["round_robin"].rollout_s


def test_bound_is_one_for_all_placements_and_holds() -> None:
    for seed in range(3):
        work = long_tailed(seed, 16, 8)
        bounds = set()
        for how in PLACEMENTS:
            engines = [PlainEngine(TIMES, 16) for _ in range(4)]
            step = simulate_rollout(work, engines, place(work.lengths, work.problems, 4, how), 1)
            assert step.rollout_s >= step.bound
            bounds.add(round(step.bound, 9))
        assert len(bounds) == 1
    with pytest.raises(ValueError, match="placement=best"):
        place(work.lengths, work.problems, 4, "best")


@pytest.mark.parametrize("max_num_seqs", [1, 2, 4])
def test_no_placement_at_all_beats_the_bound(max_num_seqs: int) -> None:
    random = np.random.default_rng(max_num_seqs)
    lengths = random.integers(1, 60, 6)
    work = workload([str(i) for i in range(6)], [np.zeros(n, np.int32) for n in lengths])
    ends, bound = [], 0.0
    for homes in product(range(2), repeat=6):
        engines = [PlainEngine(TIMES, max_num_seqs) for _ in range(2)]
        placed = [[i for i in range(6) if homes[i] == e] for e in range(2)]
        step = simulate_rollout(work, engines, placed, 1)
        ends.append(step.rollout_s)
        bound = step.bound
    assert bound <= min(ends) <= 2 * bound


def test_predicted_lengths_are_quantiles_of_the_problem() -> None:
    learned = RemainingLength(4096)
    for length in np.random.default_rng(0).permutation(np.arange(100, 300)).tolist():
        learned.observe("short", length)
        learned.observe("long", 10 * length)
    lengths = predicted_lengths(learned, ["long"] * 4 + ["short"] * 2)
    assert lengths[:4].tolist() == sorted(lengths[:4], reverse=True)
    assert lengths[0] == pytest.approx(2750, rel=0.1)
    assert lengths[3] == pytest.approx(1250, rel=0.1)
    assert lengths[4:] == pytest.approx([250, 150], rel=0.1)
    unknown = predicted_lengths(RemainingLength(4096), ["a", "b"])
    assert unknown[0] == unknown[1] > 0


def test_placement_by_predicted_lengths_is_between_blind_and_knowing() -> None:
    """Two epochs of the same problems. In the second one, predictions come from the first."""
    learned, ends = RemainingLength(16384), {}
    random = np.random.default_rng(0)
    centre = random.normal(7, 0.8, 64)
    for epoch in range(2):
        lengths = np.exp(centre[:, None] + random.normal(0, 0.3, (64, 8))).clip(1, 16384).astype(int)
        names = [str(p) for p in range(64) for _ in range(8)]
        work = workload(names, [np.zeros(n, np.int32) for n in lengths.ravel()])
        ways = {"blind": np.ones(512), "predicted": predicted_lengths(learned, names), "true": work.lengths}
        for way, expected in ways.items():
            engines = [PlainEngine(TIMES, 16) for _ in range(8)]
            placed = place(expected, names, 8, "longest_first", max_num_seqs=16, token=28e-6 / 7.8e-3)
            ends[epoch, way] = simulate_rollout(work, engines, placed, 1).rollout_s
        for name, length in zip(names, work.lengths.tolist(), strict=True):
            learned.observe(name, length)
    assert ends[1, "true"] <= ends[1, "predicted"] < ends[1, "blind"]


def test_shared_history_knows_what_other_engines_generated() -> None:
    """In the second epoch each problem runs on the other engine."""
    random = np.random.default_rng(0)
    work = workload(["a", "b"], [random.integers(0, 5000, 400) for _ in range(2)])
    tokens_per_pass = {}
    for history in ("shared", "private"):
        shared = HistoryDrafter(cross_problem_tokens=0, min_prob=0.005)
        engines = [
            TextEngine(
                TIMES,
                2,
                shared if history == "shared" else HistoryDrafter(cross_problem_tokens=0, min_prob=0.005),
                make_budget({"name": "fixed", "tokens": 8}),
                500,
                name=f"{e}-",
            )
            for e in range(2)
        ]
        simulate_rollout(work, engines, [[0], [1]], 1)
        tokens_per_pass[history] = simulate_rollout(work, engines, [[1], [0]], 2).tokens_per_pass
    assert tokens_per_pass["private"] < 1.1
    assert tokens_per_pass["shared"] > 5
