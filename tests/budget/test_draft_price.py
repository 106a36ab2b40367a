"""The price of a draft pass."""

import numpy as np
import pytest

from das.budget.draft_price import DraftPassPrice


def test_line_is_learned_from_noisy_passes() -> None:
    rng, price = np.random.default_rng(0), DraftPassPrice()
    for _ in range(500):
        rows = int(rng.integers(1, 33))
        price.observe(rows, (2e-3 + 1e-4 * rows) * float(rng.uniform(0.9, 1.1)))
    assert price.base == pytest.approx(2e-3, rel=0.05)
    assert price.row == pytest.approx(1e-4, rel=0.1)


def test_a_pass_is_free_until_one_was_seen_and_never_costs_less_than_nothing() -> None:
    price = DraftPassPrice()
    assert price.seconds(8) == 0
    price.observe(8, 1e-3)
    assert price.seconds(8) == pytest.approx(1e-3)
    for rows, seconds in ((1, 3e-3), (8, 1e-3), (16, 0.5e-3)):  # more rows took less time
        price.observe(rows, seconds)
    assert price.row == 0
    assert price.base > 0


def test_a_slow_pass_counts_for_three_at_most() -> None:
    price = DraftPassPrice()
    for _ in range(100):
        price.observe(4, 1e-3)
    price.observe(4, 1.0)
    assert price.seconds(4) < 1.1e-3


def test_a_price_that_forbids_passes_fades_until_one_is_made() -> None:
    price = DraftPassPrice()
    for _ in range(50):
        price.observe(4, 12e-3)
    for _ in range(200):
        price.decline()
    assert 0 < price.seconds(4) < 2e-3
    price.observe(4, 12e-3)  # it was right
    assert price.seconds(4) == pytest.approx(12e-3)


def test_trials_that_do_not_pay_come_ever_later() -> None:
    price, worth, waits = DraftPassPrice(), 6e-3, []
    price.observe(4, 12e-3)
    for _ in range(9):
        waits.append(0)
        while price.seconds(4) > worth:
            price.decline()
            waits[-1] += 1
        price.observe(4, 12e-3)
    assert waits[:3] == [69, 138, 276]
    assert all(abs(wait - 32 * 69) <= 32 for wait in waits[5:])
    price.observe(4, 11e-3)  # a second pass at the price that the first one showed
    waits.append(0)
    while price.seconds(4) > worth:
        price.decline()
        waits[-1] += 1
    assert waits[-1] < 70


def test_it_follows_a_machine_that_becomes_slower() -> None:
    price = DraftPassPrice()
    for _ in range(300):
        price.observe(4, 1e-3)
    for _ in range(700):
        price.observe(4, 2e-3)
    assert price.seconds(4) == pytest.approx(2e-3, rel=0.1)
