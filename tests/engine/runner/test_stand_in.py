"""The functions that stand in for vLLM's kernels on a CPU write what the kernels write."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scripts import ROOT

from das.engine.runner.host_kernels import HOST_KERNELS
from das.engine.runner.stand_in import HostKernel, compiled, replace_kernels
from das.general.errors import NotInstalled

pytestmark = pytest.mark.slow


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs checked_kernels.py, in which Triton interprets."""
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, (ROOT / "tests", ROOT / "tests" / "engine", ROOT)))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{paths}:{os.environ.get('PYTHONPATH', '')}"}
    script = [sys.executable, str(here / "checked_kernels.py"), *arguments]
    return subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_every_launch_writes_what_the_interpreted_kernel_writes(tiny_policy: str) -> None:
    run = checked(tiny_policy)
    assert run.returncode == 0, run.stderr[-3000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    result = json.loads(line.removeprefix("RESULT"))
    assert set(result["launches"]) == {*HOST_KERNELS, *compiled()}
    assert result["drafted"] > 30


def test_block_tables_of_several_kv_caches_are_written_at_once() -> None:
    replace_kernels()
    from vllm.v1.worker.gpu.buffer_utils import FusedStagedWriter, StagedWriteTensor

    device = torch.device("cpu")
    tables = [StagedWriteTensor((4, width), torch.int32, device) for width in (6, 9)]
    expected = [table.gpu.clone() for table in tables]
    for group, row, start, blocks in ((0, 2, 1, [7, 8]), (1, 3, 4, [5, 6, 9]), (1, 0, 0, [4])):
        tables[group].stage_write(row, start, blocks)
        expected[group][row, start : start + len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    addresses = torch.tensor([table.gpu.data_ptr() for table in tables], dtype=torch.uint64)
    strides = torch.tensor([table.gpu.stride(0) for table in tables])
    FusedStagedWriter(device, 8).apply(tables, addresses, strides)
    assert all(torch.equal(table.gpu, wanted) for table, wanted in zip(tables, expected, strict=True))


def test_a_kernel_without_a_function_is_named() -> None:
    def _other_kernel() -> None: ...

    with pytest.raises(NotInstalled, match=r"kernel _other_kernel does not run on a CPU"):
        HostKernel(_other_kernel)[(1,)](3)
