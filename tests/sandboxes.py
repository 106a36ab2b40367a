"""Sandboxes for tests. Not every machine allows full isolation."""

from functools import cache

import pytest

from rewards.isolation import Limits
from rewards.sandbox import Sandbox, SandboxError

ISOLATIONS = ["full", pytest.param("weak", marks=pytest.mark.slow)]


def sandbox_or_skip(workers: int, limits: Limits, isolation: str = "full") -> Sandbox:
    """A sandbox. Skips the test where the machine lacks what this isolation needs."""
    try:
        return Sandbox(workers, limits, isolation)
    except SandboxError as error:
        pytest.skip(f"this machine lacks what isolation={isolation} needs: {error}")


@cache
def best_isolation() -> str:
    """The strongest isolation that this machine allows."""
    try:
        Sandbox(1, Limits()).close()
    except SandboxError:
        return "weak"
    return "full"
