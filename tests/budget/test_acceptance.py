"""The acceptance curve and its estimators, on requests drawn from known curves."""

import numpy as np
import pytest

from das.budget.acceptance import AcceptanceModel, Curve, TokenCalibration

ASSUMED = Curve(k=0.9, alpha=0.9)


def feed(model: AcceptanceModel, curve: Curve, count: int, problem: str = "p", seed: int = 0) -> None:
    """Responses of 50 to 500 tokens with 0.05 to 8 drafted tokens a token; accepted tokens are binomial."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        length = int(rng.integers(50, 500))
        drafted = max(1, int(length * np.exp(rng.uniform(np.log(0.05), np.log(8)))))
        accepted = int(rng.binomial(length, curve.accepted(drafted, length) / length))
        model.observe(problem, length, drafted, min(accepted, drafted))


def worst(found: Curve, truth: Curve) -> float:
    """Largest difference of the two curves, as a share of the length."""
    return max(abs(found.accepted(p, 1.0) - truth.accepted(p, 1.0)) for p in np.geomspace(0.05, 8, 50))


@pytest.mark.parametrize("truth", [Curve(0.6, 0.5), Curve(0.9, 1.0), Curve(0.15, 2.0), Curve(0.4, 0.1)])
def test_known_curves_are_found(truth: Curve) -> None:
    model = AcceptanceModel(ASSUMED, own_memory=1000)
    assert model.curve("p") == ASSUMED
    feed(model, truth, 300)
    found = model.curve("p")
    assert worst(found, truth) < 0.02
    if truth.alpha >= 0.5:  # 8 drafted tokens a token tell little about the limit of a curve that rises slowly
        assert found.k == pytest.approx(truth.k, abs=0.03)
        assert found.alpha == pytest.approx(truth.alpha, rel=0.15)


def test_few_responses_lean_on_the_pool() -> None:
    model, usual, odd = AcceptanceModel(ASSUMED), Curve(0.6, 0.5), Curve(0.2, 0.5)
    for i in range(20):
        feed(model, usual, 10, problem=str(i), seed=i)
    assert worst(model.curve("never seen"), usual) < 0.03
    feed(model, odd, 1, problem="odd", seed=99)
    after_one = worst(model.curve("odd"), odd)
    feed(model, odd, 60, problem="odd", seed=100)
    assert worst(model.curve("odd"), odd) < 0.05 < after_one
    assert np.mean([worst(model.curve(str(i)), usual) for i in range(20)]) < 0.06  # ten responses each


def test_old_responses_are_forgotten() -> None:
    model = AcceptanceModel(ASSUMED, pooled=1)
    feed(model, Curve(0.2, 0.3), 200)
    feed(model, Curve(0.8, 0.9), 200, seed=1)
    assert worst(model.curve("p"), Curve(0.8, 0.9)) < 0.05


def test_what_was_never_drafted_says_nothing() -> None:
    model = AcceptanceModel(ASSUMED)
    model.observe("p", length=100, drafted=0, accepted=0)
    assert model.curve("p") == ASSUMED
    model.observe("p", length=100, drafted=50, accepted=0)  # all rejected
    assert model.curve("p").accepted(50, 100) < 1


def test_accepts_no_more_than_drafted() -> None:
    model = AcceptanceModel(ASSUMED)
    for drafted in (5, 10, 20, 40):
        model.observe("p", length=100, drafted=drafted, accepted=drafted)
    found = model.curve("p")
    assert found.k * found.alpha <= 1 + 1e-12
    assert found.accepted(10, 100) == pytest.approx(10, rel=0.2)


def test_probabilities_become_those_observed() -> None:
    """A drafter that says p where p squared is true."""
    rng = np.random.default_rng(0)
    calibration = TokenCalibration()
    probs = np.linspace(0, 1, 11)
    assert calibration(probs) == pytest.approx(np.clip(probs, 0.025, 0.975))
    for _ in range(20_000):
        said = rng.uniform(0, 1, 4)
        right = rng.random(4) < said**2
        calibration.observe(said.tolist(), int(np.argmin(right)) if not right.all() else 4)
    assert calibration(probs[1:-1]) == pytest.approx(probs[1:-1] ** 2, abs=0.03)
    assert calibration.error == pytest.approx(1 / 6, abs=0.03)  # mean of p - p^2


def test_calibrated_drafter_has_no_error() -> None:
    rng = np.random.default_rng(0)
    calibration = TokenCalibration()
    for _ in range(20_000):
        said = float(rng.random())
        calibration.observe([said], int(rng.random() < said))
    assert calibration.error < 0.02  # what chance leaves in 20 bins of 1,000
