"""Remaining lengths, compared with lengths drawn from known distributions; the order in which requests start."""

import numpy as np
import pytest

from das.budget.lengths import ByProblem, LongestFirst, RemainingLength

MAX_TOKENS = 4096


def feed(model: RemainingLength, problem: str, lengths: np.ndarray) -> None:
    for length in lengths:
        model.observe(problem, int(length))


def lengths(rng: np.random.Generator, median: float, count: int) -> np.ndarray:
    return np.minimum(np.ceil(median * np.exp(rng.normal(0, 0.5, count))), MAX_TOKENS)


@pytest.mark.parametrize("generated", [0, 100, 300])
def test_estimates_are_those_of_the_distribution(generated: int) -> None:
    rng = np.random.default_rng(0)
    model = RemainingLength(MAX_TOKENS, memory=1e6)
    feed(model, "p", lengths(rng, 200, 5000))
    drawn = lengths(rng, 200, 50_000)
    remaining = drawn[drawn > generated] - generated
    (mean,) = model.mean_remaining("p", np.array([float(generated)]))
    assert mean == pytest.approx(remaining.mean(), rel=0.05)
    assert model.mean_length("p") == pytest.approx(drawn.mean(), rel=0.05)
    shares = np.array([0.1, 0.5, 0.9])
    assert model.quantiles("p", shares) == pytest.approx(np.quantile(drawn, shares), rel=0.1)


def test_a_new_problem_is_like_the_others_then_like_itself() -> None:
    rng = np.random.default_rng(0)
    model = RemainingLength(MAX_TOKENS)
    for i in range(50):
        feed(model, str(i), lengths(rng, 100, 20))
    before = model.mean_length("new")
    assert before == pytest.approx(100 * np.exp(0.125), rel=0.1)
    feed(model, "new", lengths(rng, 1000, 2))
    assert model.mean_length("new") > 1.5 * before
    feed(model, "new", lengths(rng, 1000, 62))
    assert model.mean_length("new") == pytest.approx(1000 * np.exp(0.125), rel=0.2)


def test_limits() -> None:
    model = RemainingLength(64)
    assert 0 < model.mean_length("p") < 64
    feed(model, "p", np.array([5] * 100))
    late = np.array([60, 64])  # longer than any response seen
    assert model.mean_remaining("p", late) == pytest.approx([2.5, 1.0], abs=1.5)
    resumed = RemainingLength(128)  # the texts may be longer now: what was learned stays behind
    before = resumed.mean_length("p")
    resumed.restore(model.state())
    assert resumed.mean_length("p") == before


def test_the_oldest_problem_is_forgotten() -> None:
    counts: ByProblem[list[int]] = ByProblem(list, max_problems=3)
    for problem in ("a", "b", "a", "c", "d"):
        counts[problem].append(1)
    assert counts == {"b": [1], "c": [1], "d": [1]}
    assert counts.get("a") is None
    assert len(counts) == 3


def test_the_longest_start_first_and_siblings_together() -> None:
    """Unknown problems keep their order."""
    schedule = LongestFirst()
    assert schedule.order(["b", "a", "b", "a"]) == [0, 2, 1, 3]
    schedule.observe(["short"] * 8 + ["long"] * 8, [10] * 8 + [900] * 8)
    assert schedule.order(["short", "long", "short", "long"]) == [1, 3, 0, 2]
