"""An outage of W&B neither stops nor holds up a run, and is said once."""

import time
from pathlib import Path

import psutil
import pytest
from hydra import initialize_config_dir

from experiments.harness import tracking
from experiments.harness.arms import arm_config
from experiments.run.errors import CONFIGS
from experiments.run.run_folder import RunFolder


def test_out_of_reach_and_then_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens
    monkeypatch.setattr(tracking, "ANSWER_S", 2.0)
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = arm_config("das", ["wandb=online"])
    RunFolder(tmp_path, config)
    began = time.monotonic()
    tracker = tracking.Tracker(config, "das", "test", tmp_path, "abcdef123456")
    assert time.monotonic() - began < 60
    (said,) = tracker.log({"step": 1, "reward": 0.5, "alarms": []})
    assert said.startswith("W&B is out of reach, recording offline")
    assert tracker.log({"step": 2, "alarms": []}) == []
    assert list(tmp_path.glob("wandb/offline-run-*-abcdef123456/*.wandb"))
    for process in psutil.Process().children(recursive=True):
        if "wandb-core" in " ".join(process.cmdline()):
            process.kill()
            process.wait()
    said = tracker.log({"step": 3, "alarms": []}) + tracker.log({"step": 4, "alarms": []})
    assert len(said) == 1
    assert "metrics.jsonl alone" in said[0]
    tracker.close()
