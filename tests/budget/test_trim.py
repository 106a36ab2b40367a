"""The choice of drafted tokens, against brute force over all ways to cut the drafts."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_drafts import batch

from das.budget.marginal import best_tokens


def gain(probabilities: list[list[float]], cuts: tuple[int, ...]) -> float:
    """Expected emitted tokens beyond one each, if the drafts are cut there."""
    return float(sum(np.cumprod(draft)[:cut].sum() for draft, cut in zip(probabilities, cuts, strict=True)))


DRAFTS = st.lists(st.lists(st.floats(0.0, 1.0), max_size=4), min_size=2, max_size=4)


@given(DRAFTS, st.lists(st.floats(0.0, 3.0), min_size=16, max_size=16), st.floats(0.1, 20.0))
def test_no_cut_of_the_drafts_is_cheaper_per_token(
    probabilities: list[list[float]], rises: list[float], base: float
) -> None:
    """Prices are any that never fall: knees, stairs, flat parts."""
    total, live = sum(map(len, probabilities)), len(probabilities)
    seconds = base + np.cumsum([0.0, *rises])[: total + 1]
    chosen, counts, gains, lowest = best_tokens(batch(probabilities), seconds)
    cuts = tuple(counts.tolist())
    assert sum(cuts) == chosen
    assert gains[chosen] == pytest.approx(gain(probabilities, cuts))
    best = min(
        seconds[sum(other)] / (live + gain(probabilities, other))
        for other in itertools.product(*(range(len(draft) + 1) for draft in probabilities))
    )
    assert seconds[chosen] / (live + gains[chosen]) == pytest.approx(best, rel=1e-9)
    if chosen:
        last = [np.prod(draft[:cut]) for draft, cut in zip(probabilities, cuts, strict=True) if cut]
        assert lowest == pytest.approx(min(last), abs=1e-12)


@given(DRAFTS, st.integers(0, 16))
def test_a_fixed_number_takes_the_best_tokens(probabilities: list[list[float]], wanted: int) -> None:
    total = sum(map(len, probabilities))
    wanted = min(wanted, total)
    chosen, counts, gains, _ = best_tokens(batch(probabilities), np.ones(total + 1), wanted)
    assert chosen == wanted == counts.sum()
    every = sorted((p for draft in probabilities for p in np.cumprod(draft).tolist()), reverse=True)
    assert gains == pytest.approx(np.cumsum([0.0, *every]))
    assert gain(probabilities, tuple(counts.tolist())) == pytest.approx(sum(every[:wanted]))


def test_many_drafts_are_sorted_too() -> None:
    """Thousands of tokens, with equal gains and gains of 0 among them."""
    rng = np.random.default_rng(0)
    probabilities = [np.where(rng.random(32) < 0.3, 1.0, rng.random(32)) for _ in range(256)]
    probabilities[3][5] = 0.0
    every = -np.sort(-np.concatenate([np.cumprod(draft) for draft in probabilities]))
    _, _, gains, _ = best_tokens(batch([draft.tolist() for draft in probabilities]), np.ones(256 * 32 + 1))
    assert np.diff(gains) == pytest.approx(every)
