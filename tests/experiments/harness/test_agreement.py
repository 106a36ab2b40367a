"""The chi-square test against SciPy's, which is only among the test packages."""

import numpy as np
import pytest
from scipy.stats import chisquare

from experiments.measure.agreement import chi_square_p


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
