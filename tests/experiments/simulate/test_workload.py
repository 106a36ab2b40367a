"""Synthetic workloads: which properties of the recorded one they must keep."""

import numpy as np
import pytest

from das.budget import make_budget
from das.drafter import HistoryDrafter
from experiments.simulate.engine import simulate_rollout
from experiments.simulate.rollouts import grouped
from experiments.simulate.text_engine import TextEngine
from experiments.simulate.times import Table, Times
from experiments.simulate.workload import Synthesis, Workload, _source, _walk, made_up_problems, run_ends, workload

RUN = 2.06  # mean length of runs with which changed responses of the recorded workload are as predictable as its own
TIMES = Times(Table((1, 100, 500), (7e-3, 11e-3, 22e-3)))  # the paper's Fig 8


def recorded(problems: int = 4, responses: int = 16, length: int = 300) -> Workload:
    made = made_up_problems(problems, responses, length, seed=5)
    random = np.random.default_rng(0)
    names = [name for name, texts in made for _ in texts]
    texts = [text[: int(random.integers(50, length))] for _, group in made for text in group]
    return workload(names, texts)


def half_changed(recorded: Workload, run: float, seed: int) -> Workload:
    """The recorded workload with every second response of a problem made from the problem's other responses."""
    random = np.random.default_rng(seed)
    texts = [recorded.response(i) for i in range(len(recorded))]
    for ids in recorded.members().values():
        unchanged, changed = ids[::2], ids[1::2]
        source = _source([texts[i] for i in unchanged])
        begins = source.begins[random.integers(len(unchanged), size=len(changed))]
        walks = _walk(source, begins, recorded.lengths[changed], run, random)
        for i, text in zip(changed, walks, strict=True):
            texts[i] = text
    return workload(recorded.problems, texts, recorded.prompt)


def tokens_per_pass_and_time(work: Workload) -> tuple[float, float]:
    """Replays epochs of 4 responses per problem, one after the other, with fixed drafts."""
    engine = TextEngine(TIMES, 64, HistoryDrafter(min_prob=0.05), make_budget({"name": "fixed", "tokens": 8}), 1000)
    steps = [simulate_rollout(part, [engine], [range(len(part))], i + 1) for i, part in enumerate(grouped(work, 4))]
    return sum(s.tokens for s in steps) / sum(s.passes for s in steps), sum(s.rollout_s for s in steps)


def test_as_many_as_recorded_are_the_recorded_ones() -> None:
    work = recorded()
    made = Synthesis(work, 5.0).make(4, 16, 10**6, seed=1)
    assert sorted(work.response(i).tobytes() for i in range(64)) == sorted(
        made.response(i).tobytes() for i in range(64)
    )


def test_doubles_share_no_token_and_more_responses_are_new() -> None:
    work = recorded()
    made = Synthesis(work, 5.0).make(8, 32, 10**6, seed=1)
    first = {int(t) for i in range(4 * 32) for t in made.response(i)}
    second = {int(t) for i in range(4 * 32, 8 * 32) for t in made.response(i)}
    assert not first & second
    texts = [made.response(i).tobytes() for i in range(32)]
    assert len(set(texts)) == 32
    assert sorted(made.lengths[:16]) == sorted(made.lengths[16:32])


def test_runs_have_the_mean_asked_for_and_are_more_uneven_than_geometric_ones() -> None:
    ends = np.flatnonzero(run_ends(200_000, 4.7, np.random.default_rng(0)))
    runs = np.diff(ends)
    assert runs.min() == 1
    assert runs.mean() == pytest.approx(4.7, rel=0.03)
    assert runs.std() / runs.mean() == pytest.approx(1.2, rel=0.1)  # geometric: 0.89


def test_changed_responses_stand_in_for_the_recorded() -> None:
    """With runs of some length, tokens per pass and time stay the same if every second response is changed."""
    work = recorded()
    expected, got = tokens_per_pass_and_time(work), tokens_per_pass_and_time(half_changed(work, RUN, seed=7))
    assert got[0] == pytest.approx(expected[0], rel=0.05)
    assert got[1] == pytest.approx(expected[1], rel=0.05)
