"""Which engines are slow: by the time of their passes, while they have requests and others have none."""

import pytest

from das.cluster.paces import PATIENCE_S, SLOW, Paces


def paces(pass_s: dict[int, float], passes: int = 20) -> tuple[Paces, float]:
    """Engines whose passes took so many seconds each. They had made 100 passes before. Returns the clock, too."""
    found, now = Paces(), 1000.0
    for engine, seconds in pass_s.items():
        found.began(engine, 100, 5.0)
        found.took(engine, now - passes * seconds)
        found.heard(engine, 100 + passes, now)
    return found, now


def test_engines_are_slow_compared_with_the_slowest_that_idles() -> None:
    found, now = paces({0: 0.1, 1: 0.2, 2: 0.21 * SLOW, 3: 0.19 * SLOW, 4: 0.4 * SLOW})
    assert found.slow([2, 3, 4], [0, 1], now) == [4, 2]
    assert found.slow([1, 2, 3, 4], [0], now) == [4, 2, 3]


def test_nobody_is_slow_where_none_idles_or_the_idle_ones_never_worked() -> None:
    found, now = paces({0: 0.1, 1: 10.0})
    found.began(2, 0, now)
    assert found.slow([1], [], now) == []
    assert found.slow([1], [2], now) == []


def test_an_engine_that_is_not_heard_of_gets_slow() -> None:
    found, now = paces({0: 0.1, 1: 0.1})
    assert found.slow([1], [0], now) == []
    silent_s = 20 * 0.1 * (SLOW - 1)
    assert found.slow([1], [0], now + silent_s - 0.01) == []
    assert found.slow([1], [0], now + silent_s + 0.01) == [1]


def test_time_without_requests_does_not_count() -> None:
    found, now = paces({0: 0.1, 1: 0.1})
    found.took(1, now + 100)
    assert found.slow([1], [0], now + 100.5) == []


def test_an_engine_is_not_judged_before_it_had_time() -> None:
    found, now = paces({0: 0.001, 1: PATIENCE_S / 50}, passes=20)
    assert found.slow([1], [0], now) == []
    assert found.slow([1], [0], now + PATIENCE_S) == [1]


def test_the_pace_of_a_slow_engine_is_that_of_its_passes() -> None:
    found, now = paces({0: 0.1, 1: 0.1 * (SLOW - 0.1), 2: 0.5})
    assert [found.pace(engine) for engine in range(3)] == [1.0, 1.0, pytest.approx(5.0)]
    found.began(3, 0, now)
    assert found.pace(3) == 1.0
    assert found.pace(3, silent_s=2.0) == pytest.approx(20.0)
