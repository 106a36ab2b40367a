"""An outage of W&B neither stops nor delays a run, and is reported once."""

import time
from pathlib import Path

import psutil
import pytest
from composed import composed_arm

from experiments.arm import tracking
from experiments.run.run_folder import RunFolder


def test_out_of_reach_and_then_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # no server listens there
    monkeypatch.setattr(tracking, "ANSWER_S", 2.0)
    config = composed_arm("das", "wandb=online")
    RunFolder(tmp_path, config.resolved)
    began = time.monotonic()
    tracker = tracking.Tracker(config, "test", tmp_path)
    assert time.monotonic() - began < 60
    (line,) = tracker.log({"step": 1, "reward": 0.5, "alarms": []})
    assert line.startswith("W&B is out of reach, recording offline")
    assert tracker.log({"step": 2, "alarms": []}) == []
    (first,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    for process in psutil.Process().children(recursive=True):
        if "wandb-core" in " ".join(process.cmdline()):
            process.kill()
            process.wait()
    lines = tracker.log({"step": 3, "alarms": []}) + tracker.log({"step": 4, "alarms": []})
    assert len(lines) == 1
    assert "metrics.jsonl alone" in lines[0]
    tracker.close()
    again = tracking.Tracker(composed_arm("das", "wandb=offline"), "test", tmp_path)
    assert again.log({"step": 1, "alarms": []}) == []
    again.close()
    assert {file.name for file in tmp_path.glob("wandb/offline-run-*/*.wandb")} == {first.name}, "it is continued"
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2
