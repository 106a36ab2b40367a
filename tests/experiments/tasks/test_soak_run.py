"""task=soak for some seconds: it trains until the clock says, samples every step and leaves nothing behind."""

import json
from pathlib import Path

import pytest
from scripts import SIZES, run_script

from analysis import read

pytestmark = pytest.mark.slow


def test_a_soak_of_seconds(tiny_policy: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_script(
        "run.py", "task=soak", "task.minutes=0.2", "task.warm_up_minutes=0", *SIZES, "wandb=off", "data.problems=6",
        "checkpoint.every=0", "budget=fixed", f"policy.path={tiny_policy}", f"hydra.run.dir={run}",
    )  # fmt: skip
    result = json.loads((run / "result.json").read_text())
    assert result["steps"] == len(read.lines(run / "soak.jsonl")) >= 3
    assert result["growth"]["processes"]["median"] >= 1
    assert result["leaked"] == {"processes": [], "files": []}
    assert (run / "soak.png").stat().st_size > 0
