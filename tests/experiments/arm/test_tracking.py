"""W&B has every row of a run, also of one that was killed and resumed; its outage neither stops nor delays a run."""

import json
import math
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from composed import composed_arm

from experiments.arm import tracking
from experiments.arm.tracking import is_empty, records
from experiments.run.run_folder import RunFolder


def test_out_of_reach_and_then_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # no server listens there
    monkeypatch.setattr(tracking, "ANSWER_S", 2.0)
    config = composed_arm("das", "wandb=online")
    RunFolder(tmp_path, config.resolved)
    tracker = tracking.Tracker(config, "test", tmp_path)
    (line,) = tracker.log({"step": 1, "reward": 0.5, "alarms": []})
    assert line.startswith("W&B is out of reach, recording offline")
    assert tracker.log({"step": 2, "alarms": []}) == []
    for process in psutil.Process().children(recursive=True):
        if "wandb-core" in " ".join(process.cmdline()):
            process.kill()
            process.wait()
    lines = tracker.log({"step": 3, "alarms": []}) + tracker.log({"step": 4, "alarms": []})
    assert len(lines) == 1
    assert "metrics.jsonl alone" in lines[0]
    tracker.close()


def tracked(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Log rows to an offline W&B run, as an arm does that does not come to its end. Returns its file."""
    (folder / "meta.json").write_text(json.dumps({"commit": "f" * 40 + "-dirty", "seed": 0}))
    tracker = tracking.Tracker(composed_arm("none"), "group", folder)
    for one in rows:
        tracker.log(one)
    file, tries = Path(tracker.run.settings.sync_file), 3000
    tracker.close()
    while is_empty(file) and (tries := tries - 1):
        time.sleep(0.01)  # W&B's process writes the file after the run has ended
    return file


def items(file: Path) -> list[dict[str, Any]]:
    return [record["history"]["item"] for record in records(file) if record["type"] == "history"]


def test_a_run_that_was_killed_early_is_whole_once_it_is_resumed(tmp_path: Path) -> None:
    """W&B's process has written nothing yet, or not all steps, when it is killed with the run."""
    rows = [{"step": step, "loss": math.pi / step, "completions_digest": "c", "alarms": []} for step in (1, 2, 3)]
    first = tracked(tmp_path, rows[:1])
    first.write_bytes(first.read_bytes()[:7])
    assert is_empty(first)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows[:2]))
    found = items(tracked(tmp_path, rows[2:]))
    assert [{key: item[key] for key in row} for item, row in zip(found, rows, strict=True)] == [
        row | {"alarms": 0} for row in rows
    ]


def test_a_run_records_what_made_it(tmp_path: Path) -> None:
    file = tracked(tmp_path, [{"step": 1, "alarms": ["one", "two"]}])
    all_records = records(file)
    (run,) = (record["run"] for record in all_records if record["type"] == "run")
    assert (run["run_group"], run["job_type"], run["display_name"]) == ("group", "compare", "group/none")
    assert {"none", "small", "puzzles", "maths", "marginal"} == set(run["tags"])
    assert run["config"]["update"]["meta"]["commit"] == "f" * 40 + "-dirty"
    assert run["git"]["commit"] == "f" * 40
    (item,) = (record["history"]["item"] for record in all_records if record["type"] == "history")
    assert item["alarms"] == 2
    (end,) = (record["exit"] for record in all_records if record["type"] == "exit")
    assert end["exit_code"] == 1
