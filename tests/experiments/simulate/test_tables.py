"""Measured times of passes, interpolated."""

import numpy as np
import pytest

from experiments.simulate.latency import Drafting
from experiments.simulate.times import Grid


def test_grid_is_linear_between_its_points_and_beyond() -> None:
    """A grid reproduces, at any point, a form that is linear in requests and in drafts and context per request."""
    live, drafts, context = np.array([1.0, 4.0, 16.0]), np.array([0.0, 2.0, 8.0]), np.array([0.0, 100.0])
    b, d, c = np.meshgrid(live, drafts, context, indexing="ij")
    form = Drafting(5e-3, 1e-4, 0.0, 3e-4)
    grid = Grid(live, drafts, context, form.predict(b, b + b * d, b * c) + 1e-7 * b * c)
    random = np.random.default_rng(0)
    b, d, c = random.integers(1, 40, 50).astype(float), random.uniform(0, 16, 50), random.uniform(0, 300, 50)
    predicted = grid.predict(b, b * (1 + d), b * c)
    assert predicted == pytest.approx(form.predict(b, b * (1 + d), b * c) + 1e-7 * b * c)
    assert Grid(live[:1], drafts[:1], context[:1], np.full((1, 1, 1), 2.0)).predict(9.0, 20.0, 5.0) == 2.0
