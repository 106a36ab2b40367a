"""The error of the probabilities that a drafter states."""

import numpy as np
import pytest

from das.engine.rollouts.judge import TokenCalibration


def test_a_drafter_that_is_too_sure_has_an_error() -> None:
    """The drafter predicts p where the true probability is p squared."""
    rng = np.random.default_rng(0)
    calibration = TokenCalibration()
    for _ in range(20_000):
        predicted = rng.uniform(0, 1, 4)
        accepted = rng.random(4) < predicted**2
        calibration.observe(predicted.tolist(), int(np.argmin(accepted)) if not accepted.all() else 4)
    assert calibration.error == pytest.approx(1 / 6, abs=0.03)  # mean of p - p^2


def test_calibrated_drafter_has_no_error() -> None:
    rng = np.random.default_rng(0)
    calibration = TokenCalibration()
    for _ in range(20_000):
        predicted = float(rng.random())
        calibration.observe([predicted], int(rng.random() < predicted))
    assert calibration.error < 0.02  # chance alone explains that much in 20 bins of 1,000 tokens
