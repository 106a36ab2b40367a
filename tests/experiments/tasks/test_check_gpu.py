"""task=check_gpu at tiny shapes: every part runs, and the report says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.gpu.parts import PARTS
from experiments.run.errors import CONFIGS

pytestmark = pytest.mark.slow


# grpo is the task compare, which has tests of its own. The last arms repeat others on a CPU.
LEFT_OUT = ("grpo", "speed_das_bits", "speed_none_bits", "speed_compiled_stock", "speed_compiled_das")
QUICK = [name for name in PARTS if name not in LEFT_OUT]


def test_every_quick_part_runs_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(CONFIGS.parent / "run.py"), "task=check_gpu", "task.device=cpu", f"out={tmp_path}"]
    command += [f"task.parts=[{','.join(QUICK)}]", "task.seconds=1800"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2400)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    result = json.loads((tmp_path / "check_gpu" / "result.json").read_text())
    assert list(result["parts"]) == QUICK
    rows = result["parts"].values()
    assert all(row["ok"] and row["line"] and (row["seconds"] > 0 or "left out" in row) for row in rows)
    assert (tmp_path / "check_gpu" / "report.html").read_text().count("<td class='ok'>") == len(QUICK)
    assert not result["gpu"]
