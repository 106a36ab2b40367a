"""The latency model, on times made from known constants, with noise, interruptions and a slower machine."""

import numpy as np
import pytest
from made_passes import DRAFTING, made_passes

from das.budget import TargetPass
from das.budget.latency import LatencyModel
from das.budget.latency_forms import Drafting, Passes


def observe(model: LatencyModel, seen: Passes) -> None:
    columns = (column.tolist() for column in (seen.live, seen.tokens - seen.live, seen.context, seen.seconds))
    for live, num_drafted, context, seconds in zip(*columns, strict=True):
        model.observe(TargetPass(int(live), int(num_drafted), 0, int(context), seconds))


def test_the_fit_follows_a_machine_that_becomes_slower() -> None:
    """At first, five times slower passes look interrupted. The typical line moves once most passes are that slow."""
    model = LatencyModel(ratio=10)
    observe(model, made_passes(DRAFTING, 1024, noise=0.05, interrupted=0.1))
    slower = Drafting(**{name: 5 * value for name, value in vars(DRAFTING).items()})
    observe(model, made_passes(slower, 1024, noise=0.05))
    later = made_passes(slower, 600, noise=0.0)
    errors = np.abs(model.form.predict(later.live, later.tokens, later.context) / later.seconds - 1)
    assert errors.mean() < 0.03


def test_latency_model_assumes_then_learns() -> None:
    model = LatencyModel(ratio=10)
    assert model.form.base / model.form.token == pytest.approx(10)
    for _ in range(100):
        model.observe(TargetPass(4, 0, 0, 0, 14e-3))
    assert model.predict(4, 0, 0) == pytest.approx(14e-3)  # without drafts the assumed ratio stays
    assert model.form.base / model.form.token == pytest.approx(10)
    observe(model, made_passes(DRAFTING, 1024, noise=0.02))
    assert model.form.base / model.form.token == pytest.approx(100, rel=0.1)
