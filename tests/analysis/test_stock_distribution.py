"""Arms that sample other tokens are compared in distribution, by tests that can fail."""

from pathlib import Path

import numpy as np
import pytest
import steps_on_disk

from analysis.identity import (
    UNLIKELY,
    compare_distributions,
    distribution_verdict,
    kolmogorov_smirnov,
    sign_flip,
    standard_error,
    visible_from,
)


def verdict(folder: Path, lengths: tuple[float, float], rewards: tuple[float, float] = (0.5, 0.5)) -> str:
    """Of two arms with 16 steps of 16 responses, whose median lengths and rewards are these."""
    rng = np.random.default_rng(1)
    rows: list[list[dict[str, float]]] = []
    for name, median, reward in zip(("none", "stock"), lengths, rewards, strict=True):
        of_steps = np.maximum(1, rng.lognormal(np.log(median), 0.6, (16, 16))).astype(int)
        steps_on_disk.write_arm(
            folder / name, (), [[{"response_ids": [0] * length} for length in of_steps[0].tolist()]]
        )
        scores = rng.binomial(16, reward, 16) / 16
        rows.append([{"length_mean": n, "reward": r} for n, r in zip(of_steps.mean(1), scores, strict=True)])
    return distribution_verdict("stock", "none", compare_distributions(folder / "none", folder / "stock", *rows))


def test_the_verdict_can_fail(tmp_path: Path) -> None:
    same = verdict(tmp_path / "same", (300, 300))
    assert same.startswith("stock: compared in distribution: no difference found")
    assert "n = 16 and 16: sees 0.69 or more" in same
    assert "DIFFERENT lengths of step 1, lengths (" in verdict(tmp_path / "far", (300, 1500))
    # A difference that 16 responses cannot show shows over 16 steps.
    assert "DIFFERENT lengths (" in verdict(tmp_path / "near", (300, 480))
    assert "DIFFERENT reward (" in verdict(tmp_path / "reward", (300, 300), (0.3, 0.6))


def test_the_smallest_visible_difference_is_where_the_p_value_is_unlikely() -> None:
    from scipy.stats import kstwobign

    visible = visible_from(200, 300)
    assert kstwobign.sf(visible * (200 * 300 / 500) ** 0.5) == pytest.approx(UNLIKELY, rel=1e-6)


def test_a_paired_difference_is_judged_by_swapped_pairs() -> None:
    assert sign_flip(np.zeros(20)) == 1.0
    assert sign_flip(np.ones(4)) == pytest.approx(2 / 16, abs=0.02), "four pairs show little"
    assert sign_flip(np.full(20, 0.1)) < UNLIKELY
    assert sign_flip(np.array([1.0, -1.1, 0.9, -1.0, 1.2, -0.9])) > 0.5


def test_kolmogorov_smirnov_is_scipys() -> None:
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    for shift in (0.0, 0.2, 1.0):
        a, b = rng.normal(size=300), rng.normal(shift, size=200)
        for x, y in ((a, b), (a.round(1), b.round(1))):
            theirs = ks_2samp(x, y, method="asymp")
            statistic, p_value = kolmogorov_smirnov(list(x), list(y))
            assert statistic == pytest.approx(theirs.statistic)
            # scipy's p-value has a correction for small samples.
            assert p_value == pytest.approx(theirs.pvalue, abs=0.05)
    assert kolmogorov_smirnov([1, 2], [1, 2]) == (0.0, 1.0)
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)
