"""task=check_gpu at tiny shapes: every part runs, and the report says so."""

import json
from pathlib import Path

import pytest
from scripts import run_script

from experiments.gpu.parts import PARTS

pytestmark = pytest.mark.slow


# grpo is the task compare, which has tests of its own. The last arms repeat others on a CPU.
LEFT_OUT = ("grpo", "speed_das_bits", "speed_none_bits", "speed_compiled_stock", "speed_compiled_das")
QUICK = [name for name in PARTS if name not in LEFT_OUT]


def test_every_quick_part_runs_on_a_cpu(tmp_path: Path) -> None:
    settings = [f"task.parts=[{','.join(QUICK)}]", "task.seconds=1800", f"out={tmp_path}"]
    run_script("run.py", "task=check_gpu", "task.device=cpu", *settings, limit_s=2400)
    result = json.loads((tmp_path / "check_gpu" / "result.json").read_text())
    assert list(result["parts"]) == QUICK
    rows = result["parts"].values()
    assert all(row["ok"] and row["line"] and (row["seconds"] > 0 or "left out" in row) for row in rows)
    assert (tmp_path / "check_gpu" / "report.html").read_text().count("<td class='ok'>") == len(QUICK)
    assert not result["gpu"]
