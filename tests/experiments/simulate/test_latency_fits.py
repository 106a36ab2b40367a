"""Latency forms and their fits, on times made from known constants, with noise and interruptions."""

import numpy as np
import pytest
from made_passes import DRAFTING, made_passes

from experiments.simulate.latency_fits import FITS, Roofline, TwoSegment, relative_error
from experiments.simulate.latency_forms import Passes
from experiments.simulate.times import Affine, Form

AFFINE = Affine(c_base=5e-3, c_tok=5e-5)
TWO_SEGMENT = TwoSegment(below=Affine(5e-3, 2e-5), above=Affine(8e-3, 6e-5), knot=120)
ROOFLINE = Roofline(memory=5e-3, kv=2e-7, compute=6e-5, request=4e-5)
TRUTHS: dict[str, Form] = {"affine": AFFINE, "drafting": DRAFTING, "two_segment": TWO_SEGMENT, "roofline": ROOFLINE}


@pytest.mark.parametrize("name", FITS)
def test_fit_recovers_the_constants(name: str) -> None:
    seen = made_passes(TRUTHS[name], 600, noise=0.0)
    fitted = FITS[name](seen)
    assert relative_error(fitted, seen) < (0.01 if name == "two_segment" else 1e-6)  # not all knots are tried
    if name != "two_segment":
        assert vars(fitted) == pytest.approx(vars(TRUTHS[name]), rel=1e-6)


@pytest.mark.parametrize("name", FITS)
def test_noise_and_interruptions_hardly_move_the_fit(name: str) -> None:
    """One pass in six was interrupted. The fit still predicts the times of undisturbed passes."""
    seen = made_passes(TRUTHS[name], 600, noise=0.1, interrupted=1 / 6)
    fitted = FITS[name](seen)
    assert relative_error(fitted, made_passes(TRUTHS[name], 600, noise=0.0)) < 0.05


def test_each_form_fits_its_own_passes_best() -> None:
    for truth in ("two_segment", "roofline"):
        seen = made_passes(TRUTHS[truth], 600, noise=0.02)
        errors = {name: relative_error(fit(seen), seen) for name, fit in FITS.items()}
        assert min(errors, key=lambda name: errors[name]) == truth, errors


def test_passes_of_one_size_do_not_break_a_fit() -> None:
    same = Passes(*(np.full(40, value) for value in (4.0, 4.0, 100.0, 5e-3)))
    for name, fit in FITS.items():
        predicted = fit(same).predict(same.live, same.tokens, same.context)
        assert predicted == pytest.approx(same.seconds, rel=1e-6), name
