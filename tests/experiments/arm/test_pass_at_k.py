"""pass@k equals the share of all subsets that hold a right response; its interval covers what it should."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.arm.evaluation import interval, mean_pass_at_k, pass_at_k


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_the_estimate_is_the_share_of_subsets_with_a_right_response(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    subsets = list(combinations(right, k))
    share = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(right), sum(right), k) == pytest.approx(share, abs=1e-12)


def test_the_interval_covers_the_true_value_about_as_often_as_it_says() -> None:
    """Problems of two kinds, solved with chance 0.1 and 0.8: pass@1 is 0.45 over all such problems."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        chances = rng.choice([0.1, 0.8], 40)
        low, high = interval(4, rng.binomial(4, chances).tolist(), 1)
        covered += low <= 0.45 <= high
    assert 178 <= covered <= 198  # 95 % of 200 is 190, give or take four standard deviations


def test_problems_that_are_all_alike_still_leave_doubt() -> None:
    """With a chance above the upper bound, 20 problems in a row would fail less often than once in 40 times."""
    low, high = interval(4, [0] * 20, 1)
    assert low == 0
    assert (1 - high) ** 20 == pytest.approx(0.025)
    assert interval(4, [4] * 20, 2) == (1 - high, 1.0)


def test_problems_with_the_same_share_of_right_responses_still_leave_doubt() -> None:
    """Wilson's interval of 3 right of 4; with more problems it narrows, and it always holds the estimate."""
    low, high = interval(4, [3], 1)
    assert (low, high) == pytest.approx((0.3006, 0.9544), abs=1e-4)
    assert interval(4, [3] * 50, 1) == pytest.approx((0.6857, 0.8050), abs=1e-4)
    assert interval(4, [2], 2) == pytest.approx((0.2775, 0.9774), abs=1e-3)
    for problems in (1, 20, 1000):
        for k in (1, 2):
            low, high = interval(4, [2] * problems, k)
            assert low < high
            assert low <= mean_pass_at_k(4, [2] * problems, k) <= high
