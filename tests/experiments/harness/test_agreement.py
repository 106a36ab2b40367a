"""The chi-square test against SciPy's, which is only among the test packages, and the eye for responses that differ."""

import numpy as np
import pytest
from scipy.stats import chisquare

from experiments.harness.agreement import chi_square_p, sample_agreement


@pytest.mark.parametrize("skew", [0.0, 1e-3, 0.02, 0.3])
@pytest.mark.parametrize("draws", [1_000, 10**6])
@pytest.mark.parametrize("tokens", [2, 5, 64, 1000])
def test_p_value_equals_scipys(tokens: int, draws: int, skew: float) -> None:
    rng = np.random.default_rng(tokens + draws)
    probabilities = rng.dirichlet(np.ones(tokens)) + 1e-4
    probabilities /= probabilities.sum()
    true = probabilities * (1 + skew * rng.uniform(-1, 1, tokens))
    counts = rng.multinomial(draws, true / true.sum())
    expected = float(chisquare(counts, probabilities * draws).pvalue)
    assert chi_square_p(counts, probabilities) == pytest.approx(expected, rel=1e-8, abs=1e-290)


def test_differences_are_counted_up_to_the_first_divergence() -> None:
    plain = [
        {"tokens": [1, 2, 3], "logits": [{1: 0.5, 9: 0.1}, {2: 1.0}, {3: 2.0}]},
        {"tokens": [4, 5], "logits": [{4: 0.0}, {5: 0.0}]},
    ]
    drafted = [
        {"tokens": [1, 7], "logits": [{1: 0.5, 9: 0.1}, {2: 1.25, 7: 3.0}]},
        {"tokens": [4, 5], "logits": [{4: 0.0}, {5: 0.125}]},
    ]
    sample = sample_agreement(plain, drafted)
    assert (sample["tokens"], sample["tokens_agreeing"]) == (5, 3)
    assert (sample["sequences"], sample["sequences_agreeing"]) == (2, 1)
    assert (sample["positions"], sample["positions_with_equal_logits"]) == (4, 2)
    assert sample["largest_logit_difference"] == sample["largest_logit_difference_at_first_divergence"] == 0.25
