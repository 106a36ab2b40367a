"""The functions that stand in for vLLM's kernels on a CPU write what the kernels write."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import ROOT

from das.engine.contract.versions import NotInstalled
from das.engine.runner.host_kernels import HOST_KERNELS
from das.engine.runner.stand_in import HostKernel, compiled

pytestmark = pytest.mark.slow


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs checked_kernels.py, in which Triton interprets."""
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, (ROOT / "tests", ROOT / "tests" / "engine", ROOT)))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{paths}:{os.environ.get('PYTHONPATH', '')}"}
    script = [sys.executable, str(here / "checked_kernels.py"), *arguments]
    return subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_every_launch_writes_what_the_interpreted_kernel_writes(tiny_policy: str) -> None:
    run = checked(tiny_policy)
    assert run.returncode == 0, run.stderr[-3000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    result = json.loads(line.removeprefix("RESULT"))
    assert set(result["launches"]) == {*HOST_KERNELS, *compiled()}
    assert result["drafted"] > 30


def test_a_function_that_writes_something_else_is_noticed(tiny_policy: str) -> None:
    run = checked(tiny_policy, "_temperature_kernel")
    assert run.returncode != 0
    assert "_temperature_kernel: argument 0 differs from the kernel's" in run.stderr


def test_a_kernel_without_a_function_is_named() -> None:
    def _other_kernel() -> None: ...

    with pytest.raises(NotInstalled, match=r"kernel _other_kernel does not run on a CPU"):
        HostKernel(_other_kernel)[(1,)](3)
