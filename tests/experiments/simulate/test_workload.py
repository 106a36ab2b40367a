"""Synthetic workloads: which properties of the recorded one they must keep."""

from itertools import pairwise

import numpy as np
import pytest

from experiments.simulate.workload import Synthesis, Workload, made_up_problems, run_ends, workload


def recorded(problems: int = 4, responses: int = 16, length: int = 300) -> Workload:
    made = made_up_problems(problems, responses, length, seed=5)
    random = np.random.default_rng(0)
    names = [name for name, texts in made for _ in texts]
    texts = [text[: int(random.integers(50, length))] for _, group in made for text in group]
    return workload(names, texts)


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


def test_two_tokens_in_a_row_are_recorded() -> None:
    def pairs(work: Workload, responses: int) -> list[tuple[int, int]]:
        return [pair for i in range(responses) for pair in pairwise(work.response(i).tolist())]

    work = recorded(problems=1)
    known = set(pairs(work, len(work)))
    made = pairs(Synthesis(work, 3.0).make(1, 64, 10**6, seed=1), 64)
    assert np.mean([pair in known for pair in made]) > 0.999
