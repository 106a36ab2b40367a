"""What the speed parts say of a profile, and that forced text reaches a GPU's share of `stock`."""

import cProfile
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.gpu.speed import device_times, host_times


def event(name: str, start: float, end: float) -> Any:
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end))


def test_the_device_works_while_any_kernel_runs() -> None:
    events = [event("sum", 0, 1000), event("copy", 500, 2000), event("sum", 3000, 4000)]
    found = device_times(events, 2, is_kernel=lambda _: True)
    assert found["device_share"] == pytest.approx(0.75)
    assert (found["device_ms"], found["gap_ms"]) == (pytest.approx(1.5), pytest.approx(0.5))
    assert list(found["kernels"]) == ["sum", "copy"]
    assert found["kernels"]["sum"] == [1000.0, 1.0]
    assert device_times(events, 2, is_kernel=lambda _: False) == {}


def test_functions_of_the_host_come_with_times_a_pass() -> None:
    profile = cProfile.Profile()
    profile.enable()
    sorted(range(1000))
    profile.disable()
    found = host_times(profile, 2)
    name = next(name for name in found if "sorted" in name)
    assert found[name][2] == 0.5
