"""task=soak for some seconds: it trains until the clock says, samples every step and leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import read

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def test_a_soak_of_seconds(tiny_policy: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "run.py"), "task=soak", "task.minutes=0.2", "task.warm_up_minutes=0",
            "wandb=off", "reward=brevity", "data.problems=6", "trainer.per_device_train_batch_size=8",
            "trainer.num_generations=4", "trainer.max_completion_length=48", "engine.max_model_len=160",
            "checkpoint.every=0", "budget=fixed",
            f"policy.path={tiny_policy}", f"hydra.run.dir={run}",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((run / "result.json").read_text())
    assert result["steps"] == len(read.lines(run / "soak.jsonl")) >= 3
    assert result["growth"]["processes"]["median"] >= 1
    assert result["leaked"] == {"processes": [], "files": []}
    assert (run / "soak.png").stat().st_size > 0
