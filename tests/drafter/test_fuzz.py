"""Short forms of tests/drafter/fuzz.py: random operations and damaged files, also with gcc's sanitizers."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.drafter.fuzz import NO_SANITIZER, run_files, run_operations

FUZZ = Path(__file__).with_name("fuzz.py")


def test_nothing_is_found() -> None:
    run_operations(1)
    run_files(50)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        "operations 6 thread",
        *(pytest.param(f"{what} address", marks=pytest.mark.nightly) for what in ("operations 6", "files 1000")),
    ],
)
def test_sanitizers_find_nothing(arguments: str) -> None:
    command = [sys.executable, str(FUZZ), *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == NO_SANITIZER:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert "nothing found" in done.stdout
