"""Learned prices: monotone, close to the curve, robust against interruptions, and they follow what changes."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from das.budget import TargetPass
from das.budget.latency_forms import Drafting
from das.budget.prices import PassPrices

Seconds = Callable[[int, int], float]  # (live, extra) -> seconds


def line(live: int, extra: int) -> float:
    return 5e-3 + 2e-4 * live + (1e-3 + 5e-5 * extra if extra else 0.0)


def knee(live: int, extra: int) -> float:
    return 10e-3 + 1e-3 * max(0, live + extra - 64)


def stairs(live: int, extra: int) -> float:
    return 6e-3 + 4e-3 * -(-(live + extra) // 64)


def taught(
    seconds: Seconds, count: int = 600, noise: float = 0.03, interrupted: float = 0.0, seed: int = 0
) -> PassPrices:
    prices = PassPrices(ratio=64)
    teach(prices, seconds, count, noise, interrupted, seed)
    return prices


def teach(
    prices: PassPrices, seconds: Seconds, count: int, noise: float = 0.03, interrupted: float = 0.0, seed: int = 0
) -> None:
    """Passes of 16 to 32 requests with up to 160 extra tokens, a quarter of them without drafts."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        live, extra = int(rng.integers(16, 33)), int(rng.integers(1, 160)) * (i % 4 > 0)
        measured = seconds(live, extra) * rng.uniform(1 - noise, 1 + noise)
        measured *= rng.uniform(3, 30) if rng.random() < interrupted else 1.0
        prices.observe(TargetPass(live, extra, 0, 100 * live, measured))


def errors(prices: PassPrices, seconds: Seconds) -> np.ndarray:
    """Relative errors at many sizes."""
    tables = {live: prices.table(live, 100 * live, 150) for live in (16, 24, 32)}
    return np.array([tables[live][d] / seconds(live, d) - 1 for live in tables for d in range(0, 150, 10)])


@pytest.mark.parametrize("seconds", [line, knee, stairs])
def test_prices_bend_to_the_curve(seconds: Seconds) -> None:
    found = np.abs(errors(taught(seconds), seconds))
    assert found.mean() < 0.04
    assert found.max() < 0.25  # a step lies anywhere between two knots


@pytest.mark.parametrize("seconds", [line, knee])
def test_interrupted_passes_hardly_move_prices(seconds: Seconds) -> None:
    assert np.abs(errors(taught(seconds, 900, noise=0.1, interrupted=0.03), seconds)).mean() < 0.08


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(0, 2000), st.integers(0, 10**6), st.floats(1e-5, 10.0)),
        min_size=1,
        max_size=60,
    )
)
def test_prices_never_fall(passes: list[tuple[int, int, int, float]]) -> None:
    """Whatever the passes were: more tokens cost as much or more, and every number is finite."""
    prices = PassPrices(ratio=64)
    for live, extra, context, seconds in passes:
        prices.observe(TargetPass(live, extra, 0, context, seconds))
    live, _, context, _ = passes[-1]
    table = prices.table(live, context, 500)
    assert np.isfinite(table).all()
    assert (np.diff(table) >= -1e-9 * table.max()).all()
    # A machine that is busy now is slower by one factor at all sizes; a table leaves it out.
    plain, drafted = (prices.predict(live, extra, context) for extra in (0, 200))
    assert drafted >= table[200] * (1 - 1e-9)
    assert plain * table[200] == pytest.approx(drafted * table[0], rel=1e-9)
    assert prices.most(live) >= 1


def test_prices_begin_as_the_assumed_line() -> None:
    prices = PassPrices(ratio=50)
    assert np.isnan(prices.predict(4, 0, 0))
    for _ in range(20):
        prices.observe(TargetPass(4, 0, 0, 0, 54e-3))
    assert prices.predict(4, 0, 0) == pytest.approx(54e-3, rel=0.02)
    assert prices.predict(4, 10, 0) == pytest.approx(64e-3, rel=0.05)  # the tokens of a line cost what ratio says


def test_measured_prices_are_kept(tmp_path: Path) -> None:
    form = Drafting(base=5e-3, row=1e-4, drafting=1e-3, token=5e-5)
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({"forms": {"drafting": {"coefficients": vars(form)}}}))
    prices = PassPrices(ratio=64, measured=str(path))
    prices.observe(TargetPass(8, 0, 0, 0, 1.0))
    expected = form.predict(np.full(5, 8.0), 8.0 + np.arange(5), np.zeros(5))
    assert prices.table(8, 0, 4) == pytest.approx(expected)
    assert prices.cheapest(8, 0) == pytest.approx(5e-5 * 8 / (5e-3 + 8e-4), rel=0.1)


def test_what_is_not_tried_again_is_not_forgotten() -> None:
    prices = taught(knee)
    for _ in range(3000):
        prices.observe(TargetPass(32, 0, 0, 3200, 10e-3))
    assert prices.predict(32, 130, 3200) == pytest.approx(knee(32, 130), rel=0.15)


def test_dearer_drafts_are_followed() -> None:
    """Soon, not after as many passes as are remembered: plain passes between them show that the machine is not slow."""
    prices = taught(knee)
    for _ in range(8):
        if prices.wants_control:
            prices.observe(TargetPass(32, 0, 0, 3200, 10e-3))
        else:
            prices.observe(TargetPass(32, 110, 0, 3200, 300e-3))
    assert prices.predict(32, 110, 3200) > 180e-3
    assert prices.predict(32, 0, 3200) == pytest.approx(10e-3, rel=0.2)  # smaller passes said nothing


def slow_passes(prices: PassPrices, count: int, times: float) -> int:
    """Passes while other work takes the machine. Returns how many of them carried no drafts."""
    plain = 0
    for _ in range(count):
        extra = 0 if prices.wants_control else 100
        plain += extra == 0
        prices.observe(TargetPass(32, extra, 0, 3200, times * line(32, extra)))
    return plain


def test_a_burst_of_other_work_changes_no_price() -> None:
    prices = taught(line)
    before = prices.table(32, 3200, 150)
    assert slow_passes(prices, 30, times=3.0) <= 3, "one control shows that the machine is slow"
    assert prices.predict(32, 100, 3200) == pytest.approx(3 * line(32, 100), rel=0.1), "as long as it lasts"
    for _ in range(5):
        prices.observe(TargetPass(32, 100, 0, 3200, line(32, 100)))
    assert prices.predict(32, 100, 3200) == pytest.approx(line(32, 100), rel=0.1)
    assert prices.table(32, 3200, 150) == pytest.approx(before, rel=0.1)
    assert prices.most(32) >= 150


def test_a_machine_that_stays_slow_is_learned() -> None:
    prices = taught(line)
    assert slow_passes(prices, 300, times=2.0) <= 6
    for live, extra in ((32, 100), (32, 0), (20, 50)):
        assert prices.predict(live, extra, 100 * live) == pytest.approx(2 * line(live, extra), rel=0.15)
    assert prices.table(20, 2000, 50)[50] == pytest.approx(2 * line(20, 50), rel=0.15)


def test_one_surprise_makes_the_next_pass_smaller() -> None:
    prices = taught(line)
    before = prices.most(32)
    prices.observe(TargetPass(32, 100, 0, 3200, 1.0))
    assert prices.most(32) <= 50
    prices.observe(TargetPass(32, 50, 0, 3200, line(32, 50)))
    assert 50 < prices.most(32) < 100
    prices.observe(TargetPass(32, 95, 0, 3200, line(32, 95)))
    assert prices.most(32) == before  # it was an interruption
    assert prices.predict(32, 100, 3200) == pytest.approx(line(32, 100), rel=0.1)


def test_extra_tokens_grow_step_by_step() -> None:
    prices = PassPrices(ratio=64)
    prices.observe(TargetPass(32, 0, 0, 0, 10e-3))
    sizes = []
    while prices.most(32) < 400:
        sizes.append(prices.most(32))
        prices.observe(TargetPass(32, sizes[-1], 0, 0, 10e-3))
    assert sizes[0] == 8, "a quarter of the live requests"
    assert all(b <= 1.5 * a + 1 for a, b in itertools.pairwise(sizes))
    assert len(sizes) < 15


def test_branches_have_a_price_of_their_own() -> None:
    prices = PassPrices(ratio=64)
    assert prices.branch == 0.0
    rng = np.random.default_rng(0)
    for i in range(200):
        extra = int(rng.integers(1, 33)) * (i % 4 > 0)
        branches = int(rng.integers(0, 9)) if extra > 8 else 0
        seconds = (line(2, extra) + 3e-4 * branches) * rng.uniform(0.98, 1.02)
        prices.observe(TargetPass(2, extra, 0, 400, seconds, branches))
    assert prices.branch == pytest.approx(3e-4, rel=0.15)
    assert prices.predict(2, 20, 400, 5) == pytest.approx(line(2, 20) + 1.5e-3, rel=0.05)
    assert prices.table(2, 400, 20)[20] == pytest.approx(line(2, 20), rel=0.08), "a table is of drafts without branches"
