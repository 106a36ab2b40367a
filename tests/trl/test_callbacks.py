"""W&B of a user's script can tell arms apart, and gets what das measures once, on TRL's row."""

from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from transformers.integrations import WandbCallback

from das.engine.settings import EngineSettings
from das.trl.callbacks import WandbRecord


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
