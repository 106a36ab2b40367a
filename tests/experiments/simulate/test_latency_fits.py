"""Latency forms and their fits, on times made from known constants, with noise and interruptions."""

import numpy as np
import pytest
from made_passes import DRAFTING, made_passes

from experiments.simulate.latency import FITS, Passes, relative_error
from experiments.simulate.times import Affine, Form

AFFINE = Affine(c_base=5e-3, c_tok=5e-5)
TRUTHS: dict[str, Form] = {"affine": AFFINE, "drafting": DRAFTING}


@pytest.mark.parametrize("name", FITS)
def test_fit_recovers_the_constants(name: str) -> None:
    seen = made_passes(TRUTHS[name], 600, noise=0.0)
    fitted = FITS[name](seen)
    assert vars(fitted) == pytest.approx(vars(TRUTHS[name]), rel=1e-6)


@pytest.mark.parametrize("name", FITS)
def test_noise_and_interruptions_hardly_move_the_fit(name: str) -> None:
    """One pass in six was interrupted. The fit still predicts the times of undisturbed passes."""
    seen = made_passes(TRUTHS[name], 600, noise=0.1, interrupted=1 / 6)
    fitted = FITS[name](seen)
    assert relative_error(fitted, made_passes(TRUTHS[name], 600, noise=0.0)) < 0.05


def test_passes_of_one_size_do_not_break_a_fit() -> None:
    same = Passes(*(np.full(40, value) for value in (4.0, 4.0, 100.0, 5e-3)))
    for name, fit in FITS.items():
        predicted = fit(same).predict(same.live, same.tokens, same.context)
        assert predicted == pytest.approx(same.seconds, rel=1e-6), name
