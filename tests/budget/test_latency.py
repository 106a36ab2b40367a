"""The latency model: medians by size that never fall, close to the curve, robust against what slows a machine."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_passes import made_passes

from das.budget import TargetPass
from das.budget.latency import LatencyModel, monotone
from experiments.simulate.times import Drafting

Seconds = Callable[[int, int], float]  # (live, drafted) -> seconds of a pass


def line(live: int, drafted: int) -> float:
    return 5e-3 + 2e-5 * (live + drafted) + (1e-3 if drafted else 0.0)


def knee(live: int, drafted: int) -> float:
    return 5e-3 + 1e-4 * max(0, live + drafted - 96) + (5e-4 if drafted else 0.0)


def stairs(live: int, drafted: int) -> float:
    return 5e-3 + 1e-3 * np.ceil((live + drafted) / 32)


def taught(seconds: Seconds, count: int = 1500, noise: float = 0.03, interrupted: float = 0.0) -> LatencyModel:
    """A model that saw passes of 16 to 32 requests with up to 150 drafted tokens; every fourth has none."""
    model, rng = LatencyModel(), np.random.default_rng(0)
    for i in range(count):
        live, drafted = int(rng.integers(16, 33)), int(rng.integers(1, 151)) * (i % 4 > 0)
        slow = rng.uniform(3, 30) if rng.random() < interrupted else 1.0
        model.observe(TargetPass(live, drafted, 0, 0, seconds(live, drafted) * rng.lognormal(0, noise) * slow))
    return model


def errors(model: LatencyModel, seconds: Seconds) -> np.ndarray:
    """Relative errors of the predictions, without the sign."""
    sizes = [(live, drafted) for live in (16, 24, 32) for drafted in (0, 20, 60, 100, 140)]
    return np.array([abs(model.predict(*size) / seconds(*size) - 1) for size in sizes])


@pytest.mark.parametrize("seconds", [line, knee, stairs])
def test_it_converges_to_the_curve(seconds: Seconds) -> None:
    assert errors(taught(seconds), seconds).mean() < 0.04


@pytest.mark.parametrize("seconds", [line, knee])
def test_interrupted_passes_hardly_move_it(seconds: Seconds) -> None:
    """A median does not mind that one pass in ten takes 3 to 30 times as long."""
    assert errors(taught(seconds, interrupted=0.1), seconds).mean() < 0.04


passes = st.tuples(st.integers(1, 300), st.integers(0, 900), st.floats(1e-5, 10.0))


@given(st.lists(passes, min_size=1, max_size=60), st.integers(1, 300))
def test_more_tokens_never_take_less_time(seen: list[tuple[int, int, float]], live: int) -> None:
    model = LatencyModel()
    for requests, drafted, seconds in seen:
        model.observe(TargetPass(requests, drafted, 0, 0, seconds))
    table = model.table(live, 1500)
    assert np.isfinite(table).all()
    assert table[0] > 0
    assert (np.diff(table) >= -1e-9 * table[1:]).all()
    for drafted in (0, 1, 700):
        assert model.predict(live, drafted) == pytest.approx(min(table[drafted], model.predict(live, drafted)))
    assert model.most(live) >= 1
    assert model.cheapest(live) >= 0
    assert min(model.line(live)) > 0


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 9)), min_size=1, max_size=12))
def test_monotone_is_the_nearest_that_never_falls(points: list[tuple[float, float]]) -> None:
    values, weights = ([point[i] for point in points] for i in (0, 1))
    found = monotone(values, weights)
    assert np.all(np.diff(found) >= -1e-9)
    # Of all that never fall: the largest over beginnings of the smallest over ends of the weighted mean between them.
    count = range(len(values))
    for at in count:
        means = [
            [np.average(values[i : j + 1], weights=weights[i : j + 1]) for j in count if j >= at]
            for i in count
            if i <= at
        ]
        assert found[at] == pytest.approx(max(map(min, means)), abs=1e-9)


def test_it_begins_as_the_assumed_line() -> None:
    model = LatencyModel(ratio=50)
    assert np.isnan(model.predict(4))
    base, token = model.line(4)
    assert base / token == pytest.approx(50)
    for _ in range(5):
        model.observe(TargetPass(4, 0, 0, 0, 54e-3))
    assert model.predict(4) == pytest.approx(54e-3)
    assert model.predict(4, 10) == pytest.approx(64e-3)
    assert model.line(4) == pytest.approx((50e-3, 1e-3))


def test_one_size_says_little_of_others_and_is_not_forgotten() -> None:
    model = taught(knee)
    for _ in range(2000):
        model.observe(TargetPass(32, 0, 0, 0, 5e-3))
    assert model.predict(32, 130) == pytest.approx(knee(32, 130), rel=0.1)


def test_a_burst_of_other_work_is_not_believed() -> None:
    """Eight passes that take three times as long change nothing; after twice as many it is how the machine is."""
    model = taught(line)
    for _ in range(8):
        model.observe(TargetPass(32, 100, 0, 0, 3 * line(32, 100)))
    assert model.predict(32, 100) == pytest.approx(line(32, 100), rel=0.1)
    for _ in range(16):
        model.observe(TargetPass(32, 100, 0, 0, 3 * line(32, 100)))
    assert model.predict(32, 100) == pytest.approx(3 * line(32, 100), rel=0.1)


def test_sizes_grow_step_by_step() -> None:
    model = LatencyModel()
    model.observe(TargetPass(32, 0, 0, 0, 10e-3))
    sizes = []
    while model.most(32) < 400:
        sizes.append(model.most(32))
        model.observe(TargetPass(32, sizes[-1], 0, 0, 10e-3))
    assert sizes[0] == 8  # a quarter of the requests
    assert all(later <= 1.5 * earlier for earlier, later in pairwise(sizes))


def test_requests_are_told_from_drafted_tokens() -> None:
    """64 tokens take longer as 64 requests than as 8 requests with 7 drafted tokens each."""
    form = Drafting(base=5e-3, row=2e-4, drafting=0.0, token=1e-5)
    model = LatencyModel()
    seen = made_passes(form, 3000, noise=0.02)
    columns = (column.tolist() for column in (seen.live, seen.tokens - seen.live, seen.seconds))
    for live, drafted, seconds in zip(*columns, strict=True):
        model.observe(TargetPass(int(live), int(drafted), 0, 0, seconds))
    assert model.predict(64) == pytest.approx(17.8e-3, rel=0.1)
    assert model.predict(8, 56) == pytest.approx(7.16e-3, rel=0.1)
