"""The acceptance curve and its estimators, tested on requests drawn from known curves."""

import numpy as np
import pytest

from das.budget.acceptance import AcceptanceModel, Curve, TokenCalibration

ASSUMED = Curve(k=0.9, alpha=0.9)


def accepted(curve: Curve, num_drafted: float, length: float) -> float:
    """How many of `num_drafted` tokens the curve expects to be accepted in a response of `length` tokens."""
    return curve.k * length * (1 - float(np.exp(-curve.alpha * num_drafted / length)))


def feed(model: AcceptanceModel, curve: Curve, count: int, problem: str = "p", seed: int = 0) -> None:
    """Observe responses of 50 to 500 tokens, with 0.05 to 8 drafted tokens for each; accepted tokens are binomial."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        length = int(rng.integers(50, 500))
        num_drafted = max(1, int(length * np.exp(rng.uniform(np.log(0.05), np.log(8)))))
        num_accepted = int(rng.binomial(length, accepted(curve, num_drafted, length) / length))
        model.observe(problem, length, num_drafted, min(num_accepted, num_drafted))


def largest_error(fitted: Curve, truth: Curve) -> float:
    """The largest difference of the two curves, as a share of the length."""
    return max(abs(accepted(fitted, p, 1.0) - accepted(truth, p, 1.0)) for p in np.geomspace(0.05, 8, 50))


@pytest.mark.parametrize("truth", [Curve(0.6, 0.5), Curve(0.9, 1.0), Curve(0.15, 2.0), Curve(0.4, 0.1)])
def test_known_curves_are_found(truth: Curve) -> None:
    model = AcceptanceModel(ASSUMED, own_memory=1000)
    assert model.curve("p") == ASSUMED
    feed(model, truth, 300)
    fitted = model.curve("p")
    assert largest_error(fitted, truth) < 0.02
    if truth.alpha >= 0.5:  # up to 8 drafted tokens for each token say little about the limit of a slowly rising curve
        assert fitted.k == pytest.approx(truth.k, abs=0.03)
        assert fitted.alpha == pytest.approx(truth.alpha, rel=0.15)


def test_problems_with_few_responses_follow_the_pool() -> None:
    model, usual, odd = AcceptanceModel(ASSUMED), Curve(0.6, 0.5), Curve(0.2, 0.5)
    for i in range(20):
        feed(model, usual, 10, problem=str(i), seed=i)
    assert largest_error(model.curve("never seen"), usual) < 0.03
    feed(model, odd, 1, problem="odd", seed=99)
    after_one = largest_error(model.curve("odd"), odd)
    feed(model, odd, 60, problem="odd", seed=100)
    assert largest_error(model.curve("odd"), odd) < 0.05 < after_one
    assert np.mean([largest_error(model.curve(str(i)), usual) for i in range(20)]) < 0.06  # ten responses each


def test_old_responses_are_forgotten() -> None:
    model = AcceptanceModel(ASSUMED, pooled=1)
    feed(model, Curve(0.2, 0.3), 200)
    feed(model, Curve(0.8, 0.9), 200, seed=1)
    assert largest_error(model.curve("p"), Curve(0.8, 0.9)) < 0.05


def test_responses_without_drafts_are_ignored() -> None:
    model = AcceptanceModel(ASSUMED)
    model.observe("p", length=100, num_drafted=0, num_accepted=0)
    assert model.curve("p") == ASSUMED
    model.observe("p", length=100, num_drafted=50, num_accepted=0)  # all rejected
    assert accepted(model.curve("p"), 50, 100) < 1


def test_accepts_no_more_than_drafted() -> None:
    model = AcceptanceModel(ASSUMED)
    for count in (5, 10, 20, 40):
        model.observe("p", length=100, num_drafted=count, num_accepted=count)
    fitted = model.curve("p")
    assert fitted.k * fitted.alpha <= 1 + 1e-12
    assert accepted(fitted, 10, 100) == pytest.approx(10, rel=0.2)


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
