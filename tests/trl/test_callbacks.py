"""W&B of a user's script can tell arms apart, and gets what das measures once, on TRL's row."""

from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from transformers.integrations import WandbCallback

from das.engine.rollouts.report import Finished, RolloutReport
from das.engine.rollouts.rollout import Rollout
from das.engine.settings import EngineSettings
from das.trl.callbacks import LastLine, WandbRecord


def test_config_tags_group_and_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    record = WandbRecord(EngineSettings(model="models/tiny", drafter={"window": 4}, method="das"))
    run = wandb.init(project="test", dir=tmp_path, tags=["mine"])
    logged: list[dict[str, Any]] = []
    args, state = SimpleNamespace(report_to=["wandb"]), SimpleNamespace(global_step=3, is_world_process_zero=True)
    record.on_train_begin(args, state, None)
    monkeypatch.setattr(run, "log", logged.append)
    of_transformers = WandbCallback()
    of_transformers._initialized, of_transformers._wandb = True, SimpleNamespace(log=logged.append, run=run)
    for callback in (of_transformers, record):
        callback.on_log(args, state, None, logs={"das/rollout_s": 1.5, "loss": 0.1}, model=None)
    assert run.group == "das tiny"
    assert run.config["das"]["method"] == "das"
    assert run.config["das"]["drafter"] == {"window": 4}
    assert run.tags == ("mine", "das", "marginal")
    assert logged == [{"train/das/rollout_s": 1.5, "train/loss": 0.1, "train/global_step": 3}]
    run.finish()


def test_a_training_ends_with_what_its_drafts_saved(capsys: pytest.CaptureFixture[str]) -> None:
    line, state = LastLine(), SimpleNamespace(is_world_process_zero=True)
    line.on_train_end(None, state, None)  # nothing was rolled out
    for emitted in ([1] * 8, [7, 1]):
        finished = [Finished(passes=len(emitted), drafted=8, tokens=[1] * 8, emitted=emitted)]
        line.add(Rollout(1, finished, 1.0, RolloutReport(passes=len(emitted), drafted=8)))
    line.on_train_end(None, state, None)
    expected = "das: 6 of 16 drafted tokens were accepted (38%); 10 passes in place of 16, 38% saved, in 2 rollouts\n"
    assert capsys.readouterr().err == expected
