"""What ranks with a shard each say where a checkpoint cannot be written; test_sharded_scripts.py trains."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict

from das.general import ranks
from das.trl import resume


def test_a_full_disk_of_the_main_rank_ends_the_others_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It alone writes the optimizer's state. The others would wait for it in their next exchange."""
    (tmp_path / resume.OPTIMIZER).symlink_to("/dev/full")
    monkeypatch.setattr(state_dict, "get_optimizer_state_dict", lambda *args, **kwargs: {"moment": torch.zeros(9)})
    said: list[str] = []

    def gather(problem: str) -> list[str]:
        said.append(problem)
        return [said[0], problem]

    monkeypatch.setattr(ranks, "gather", gather)
    for should_save in (True, False):
        trainer: Any = SimpleNamespace(
            model=None,
            optimizer=SimpleNamespace(optimizer=None),
            lr_scheduler=SimpleNamespace(state_dict=dict),
            args=SimpleNamespace(should_save=should_save),
        )
        with pytest.raises(OSError, match="the optimizer's state could not be written: ") as failed:
            resume._save_optimizer_and_scheduler(trainer, str(tmp_path))
        assert "\n" not in str(failed.value)
    assert said[1] == "", "the second rank had nothing to write"
