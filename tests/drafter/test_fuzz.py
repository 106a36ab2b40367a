"""Short forms of tests/drafter/fuzz.py: random operations and damaged files, also with gcc's sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")
NO_SANITIZER = 77


def fuzz(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FUZZ), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.mark.parametrize(
    "arguments",
    [
        "operations 1",
        "files 50",
        pytest.param("operations 6 address", marks=pytest.mark.slow),
        *(
            pytest.param(arguments, marks=[pytest.mark.slow, pytest.mark.nightly])
            for arguments in ("files 1000", "files 1000 address")
        ),
    ],
)
def test_nothing_is_found(arguments: str) -> None:
    done = fuzz(*arguments.split())
    if done.returncode == NO_SANITIZER:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert "nothing found" in done.stdout


def test_a_compiler_without_sanitizers_is_one_line() -> None:
    done = fuzz("files", "1", "address", PATH=os.devnull)
    assert done.returncode == NO_SANITIZER
    assert done.stdout.splitlines() == ["gcc has no libasan.so here: nothing was run with the address sanitizer"]
