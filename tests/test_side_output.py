"""Side outputs that fail say so in one line each, and neither a rollout nor an update ends by them."""

import errno
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from composed import composed_arm

from das.engine.rollouts import totals
from das.engine.rollouts.report import Finished, RolloutReport
from das.engine.rollouts.rollout import Rollout
from das.engine.settings import EngineSettings
from das.general import side_output
from das.trl.callbacks import LastLine, WandbRecord
from das.trl.lag import StepRollouts
from das.trl.speculate import logged, roll_out_announced
from experiments.arm import tracking
from experiments.run.progress import Progress
from experiments.run.run_folder import ENGINES, RunFolder, rollout_row

FINISHED = Finished(2, 0, problem="p", tokens=[1, 2], finish_reason="stop")
ROLLED_OUT = Rollout(0, [FINISHED], 1.0, RolloutReport(passes=2))
ROW = {"step": 1, "arm": "das", "rollout_s": 1.5, "tokens_per_pass": 2.0, "length_max": 70, "alarms": []}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_output, "_said", set())


def broken(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


class Broken:
    """Of which nothing works."""

    def __getattr__(self, name: str) -> Any:
        return broken


def sum_of_das_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(totals.FOLDER, str(tmp_path / "removed"))
    monkeypatch.setattr(totals, "_own", dict.fromkeys(totals.NAMES, 0))
    totals.add_to_totals({"passes": 2, "drafted": 1, "accepted": 1})


def timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path, composed_arm("das").resolved)
    (tmp_path / "rollouts" / "step_00001.timeline.json.gz").mkdir(parents=True)
    folder.add_step(ROW, ROLLED_OUT, [None])
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["step"] == 1


def events_of_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path, composed_arm("das").resolved)
    (tmp_path / ENGINES).mkdir()
    report = RolloutReport(passes=2, engines=[{"engine": 0}])
    folder.add_step(ROW, Rollout(0, [FINISHED], 1.0, report), [None])
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["step"] == 1


def terminal_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    progress = Progress(2, terminal=terminal)
    progress.step(ROW)
    terminal.close()
    progress.step(ROW | {"step": 2})
    progress.note("result: here")


def pipe_that_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with side_output.lasting(writes) as terminal:
        progress = Progress(2, terminal=terminal)
        for step in (1, 2):
            progress.step(ROW | {"step": step})
        assert progress.terminal is terminal
        print("result: here", file=terminal)


def verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(2, terminal=io.StringIO(), verdict=broken)
    progress.step(ROW)
    progress.step(ROW | {"step": 2})


def rows_in_the_logs_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = SimpleNamespace(last=None, announce=lambda *args: None)

    def roll_out(batch: Any) -> str:
        generation.last = ROLLED_OUT
        return "rolled out"

    model = SimpleNamespace(training=False)
    trainer = SimpleNamespace(vllm_generation=generation, model=model, _metrics={"eval": {}})
    rollouts = StepRollouts(trainer)
    assert roll_out_announced(roll_out, trainer, rollouts, LastLine(), []) == "rolled out"
    trainer._metrics["eval"] = {f"das/{name}": [] for name in logged(ROLLED_OUT)}
    generation.last = None
    roll_out_announced(roll_out, trainer, rollouts, LastLine(), [])
    assert trainer._metrics["eval"]["das/tokens_per_pass"] == [1.0]


def wandb_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = WandbRecord(EngineSettings(model="tiny"))
    monkeypatch.setattr(wandb, "run", SimpleNamespace(config=Broken(), tags=()))
    record.on_train_begin(SimpleNamespace(report_to=["wandb"]), None, None)


SIDE_OUTPUTS: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    each.__name__: each
    for each in (
        *(sum_of_das_run, timeline, events_of_engines, terminal_that_is_gone),
        *(pipe_that_nobody_reads, verdict, rows_in_the_logs_of_trl, wandb_of_a_script),
    )
}


@pytest.mark.parametrize("name", SIDE_OUTPUTS)
def test_one_line_and_no_exception(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    SIDE_OUTPUTS[name](tmp_path, monkeypatch)
    (line,) = [each.getMessage() for each in caplog.records if each.name == "das"]
    assert "and the run goes on without: " in line
    assert "\n" not in line


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tracking.Tracker]:
    """A tracker whose W&B run takes nothing any more."""
    monkeypatch.setattr(tracking, "_end_wandb", lambda: None)
    tracker = tracking.Tracker(composed_arm("das", "wandb=off"), "test", tmp_path)
    tracker.run = Broken()
    yield tracker
    tracker.close()


def test_wandb_that_takes_no_row_is_said_once(tracker: tracking.Tracker) -> None:
    (line,) = tracker.log(ROW)
    assert "from now on metrics.jsonl alone has the rows" in line
    assert "No space left" in line
    assert tracker.log(ROW | {"step": 2}) == []
    tracker.end({"weights": "1"})


def test_wandb_that_cannot_end_ends_nothing(tracker: tracking.Tracker, caplog: pytest.LogCaptureFixture) -> None:
    tracker.run.summary = Broken()
    tracker.end({"weights": "1"})
    tracker.close()
    assert len(caplog.records) == 2


def test_wandb_that_does_not_start_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "init", broken)
    config = composed_arm("das", "wandb=offline")
    RunFolder(tmp_path, config.resolved)
    tracker = tracking.Tracker(config, "test", tmp_path)
    (line,) = tracker.log(ROW)
    assert line.startswith("W&B failed, and the run goes on without: OSError")
    tracker.close()


def test_numbers_of_a_rollout_without_a_token() -> None:
    """Every prompt filled its context."""
    row = rollout_row(Rollout(0, [Finished(0, 0, problem="p", predicted_length=2.0)], 1.0, RolloutReport()))
    assert (row["tokens_per_pass"], row["longest_over_mean"], row["length_error"]) == (0, 0, 2)
