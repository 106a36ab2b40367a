"""W&B of a user's script can tell arms apart, and has the names of docs/metrics.md."""

from types import SimpleNamespace
from typing import Any

import pytest
import wandb

from das.engine.build import EngineSettings
from das.trl.wandb_record import WandbRecord


def test_config_tags_group_and_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    record = WandbRecord(EngineSettings(model="models/tiny", drafter={"window": 4}, method="das"))
    run = wandb.init(project="test", dir=tmp_path, tags=["mine"])
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr(run, "log", logged.append)
    args, state = SimpleNamespace(report_to=["wandb"]), SimpleNamespace(global_step=3)
    record.on_train_begin(args, state, None)
    record.on_log(args, state, None, {"das/rollout_s": 1.5, "loss": 0.1})
    record.on_log(args, state, None, {"loss": 0.1})
    assert run.group == "das tiny"
    assert run.config["das"]["method"] == "das"
    assert run.config["das"]["drafter"] == {"window": 4}
    assert run.tags == ("mine", "das", "marginal")
    assert logged == [{"das/rollout_s": 1.5, "train/global_step": 3}]
    run.finish()
    record.on_log(SimpleNamespace(report_to=["tensorboard"]), state, None, {"das/rollout_s": 1.5})
    assert len(logged) == 1
