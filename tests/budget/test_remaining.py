"""Remaining lengths, compared with lengths drawn from known distributions."""

import numpy as np
import pytest

from das.budget.length import LengthClass, LengthModel
from das.budget.remaining import RemainingLength

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
    remaining = lengths(rng, 200, 50_000) - generated
    remaining = remaining[remaining > 0]
    estimate = model.estimate("p", generated)
    assert estimate.mean == pytest.approx(remaining.mean(), rel=0.05)
    assert estimate.low == pytest.approx(np.quantile(remaining, 0.1), rel=0.15, abs=3)
    assert estimate.high == pytest.approx(np.quantile(remaining, 0.9), rel=0.1)
    chances = model.beyond("p", generated, np.array([150.0, 400.0]))
    assert chances == pytest.approx([np.mean(remaining + generated > limit) for limit in (150, 400)], abs=0.03)


def test_a_new_problem_is_like_the_others_then_like_itself() -> None:
    rng = np.random.default_rng(0)
    model = RemainingLength(MAX_TOKENS)
    for i in range(50):
        feed(model, str(i), lengths(rng, 100, 20))
    before = model.estimate("new", 0).mean
    assert before == pytest.approx(100 * np.exp(0.125), rel=0.1)
    feed(model, "new", lengths(rng, 1000, 2))
    assert model.estimate("new", 0).mean > 1.5 * before
    feed(model, "new", lengths(rng, 1000, 62))
    assert model.estimate("new", 0).mean == pytest.approx(1000 * np.exp(0.125), rel=0.2)


def test_limits() -> None:
    model = RemainingLength(64)
    unknown = model.estimate("p", 0)
    assert 0 < unknown.low < unknown.mean < 64
    assert model.estimate("p", 64).high == 0
    feed(model, "p", np.array([5] * 100))
    late = model.estimate("p", 60)  # longer than any response seen
    assert 0 < late.mean <= 4
    assert 0 <= late.low <= late.high <= 4
    assert model.beyond("p", 10, np.array([5.0])) == pytest.approx([1.0])


def test_class_probabilities_are_counts() -> None:
    model = LengthModel(medium=10, long=100)
    assert model.probabilities(0, LengthClass.MEDIUM) == [0, 0, 0]
    for length in [5] * 6 + [20] * 3 + [200]:
        model.observe("p", LengthClass.MEDIUM, length)
    model.refit()
    assert model.probabilities(0, LengthClass.MEDIUM) == pytest.approx([0.6, 0.3, 0.1])
    assert model.probabilities(5, LengthClass.MEDIUM) == pytest.approx([0, 0.75, 0.25])
    assert model.probabilities(50, LengthClass.MEDIUM) == pytest.approx([0, 0, 1])
    assert model.initial("p") is LengthClass.SHORT
    assert model.current(0, LengthClass.MEDIUM) is LengthClass.SHORT
    assert model.current(5, LengthClass.MEDIUM) is LengthClass.MEDIUM
    assert model.current(50, LengthClass.MEDIUM) is LengthClass.LONG
