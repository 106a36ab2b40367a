"""The CPU limit is precise, also for a solution that sleeps over the clock ticks by which the kernel counts."""

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sandboxes import ISOLATIONS, sandbox_or_skip

from rewards import values
from rewards.code import job, program_tests
from rewards.isolation import Limits
from rewards.judge import Child, Failed, ForkServer
from rewards.sandbox import Sandbox

LIMITS = Limits(cpu_s=1, wall_s=3.0)
# The kernel charges a whole tick to the process that runs at the tick. This code finds the phase of the ticks (250 Hz)
# by a timer that counts charged time, and then sleeps over every tick.
DODGE = """
import signal, time
PERIOD = 4_000_000
def compute(offset, cpu_s):
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        phase = (time.monotonic_ns() - offset) % PERIOD
        if phase > 0.72 * PERIOD:
            time.sleep((1.05 * PERIOD - phase) * 1e-9)
        else:
            for _ in range(50): pass
def charged(offset):
    before = signal.getitimer(signal.ITIMER_PROF)[0]
    compute(offset, 0.02)
    return before - signal.getitimer(signal.ITIMER_PROF)[0]
signal.setitimer(signal.ITIMER_PROF, 1000)
offset = min((PERIOD * k // 10 for k in range(10)), key=charged)
def f(x):
    compute(offset, SECONDS)
    return x * x
"""


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    """Both kinds of isolation."""
    return str(request.param)


@pytest.fixture(scope="module")
def server(isolation: str, sandbox: Sandbox) -> Iterator[ForkServer]:
    """A fork server without a judge around it, where there can be one with a judge."""
    server = ForkServer(isolation, LIMITS)
    yield server
    server.control.close()
    server.process.wait()


@pytest.fixture(scope="module")
def sandbox(isolation: str) -> Iterator[Sandbox]:
    """One judge."""
    sandbox = sandbox_or_skip(1, LIMITS, isolation)
    yield sandbox
    sandbox.close()


def cpu_seconds(server: ForkServer, source: str) -> float:
    """CPU seconds that a solution gets, from its definition to the end of one call."""
    child = Child(server, time.monotonic(), 0.0, LIMITS)
    with suppress(Failed):
        child.send(values.encode({"source": source, "entry": "f", "stdin": None}))
        child.receive()
        child.send(values.encode([[6], {}]))
        child.receive()
    return child.close()


def test_a_solution_that_sleeps_over_ticks_gets_no_more(server: ForkServer) -> None:
    assert cpu_seconds(server, DODGE.replace("SECONDS", "0.1")) < 1.0
    assert 1.0 <= cpu_seconds(server, DODGE.replace("SECONDS", "6.0")) < 1.3


def test_a_solution_that_computes_gets_its_limit(server: ForkServer) -> None:
    assert 1.0 <= cpu_seconds(server, "def f(x):\n    while True: pass") < 1.3


def test_a_dodger_does_not_pass(sandbox: Sandbox) -> None:
    check = "def check(candidate):\n    for x in (2, 3, 4, 5): assert candidate(x) == x * x"
    (verdict,) = sandbox.run([{"source": DODGE.replace("SECONDS", "0.4"), "entry": "f", "tests": check}])
    assert (verdict.passed, verdict.why) == (False, "CPU time")
    source = DODGE.replace("SECONDS", "2.0") + "\nprint(f(int(input())))"
    (verdict,) = sandbox.run([job(source, program_tests([("6\n", "36")]))])
    assert (verdict.passed, verdict.why) == (False, "CPU time")


def test_many_small_writes_are_not_charged_more_than_they_use(sandbox: Sandbox) -> None:
    """A process that sleeps and wakes often can be charged by the kernel for ticks of others."""
    source = "import os, time\nwhile time.process_time() < 0.85: os.write(1, b' ')\nprint(36)"
    (verdict,) = sandbox.run([job(source, program_tests([("", "36")]))])
    assert (verdict.passed, verdict.why) == (True, "passed")
