"""Micro-batches that do not fit into memory are refused with a line that says which do."""

import json
from pathlib import Path

import psutil
import pytest
from composed import composed_run

from experiments.harness.validate_memory import GIB, check_memory
from experiments.run.errors import UserError

SMOLLM2 = {"num_hidden_layers": 30, "hidden_size": 576, "intermediate_size": 1536}


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with SmolLM2's shape, on a machine of 24 GiB."""
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(538_000_000)
    memory = psutil.virtual_memory()._replace(total=24 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    return str(tmp_path)


def test_a_batch_that_was_killed_is_refused(policy: str) -> None:
    arms = [
        composed_run("policy=smollm2", "trainer.per_device_train_batch_size=32", f"arm={arm}")
        for arm in ("none", "das")
    ]
    with pytest.raises(UserError) as refused:
        check_memory(arms, policy)
    assert "set it to 4 and trainer.gradient_accumulation_steps to 8" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_batch_that_ran_is_allowed(policy: str) -> None:
    split = ("trainer.per_device_train_batch_size=4", "+trainer.gradient_accumulation_steps=8")
    check_memory([composed_run("policy=smollm2", *split, f"arm={arm}") for arm in ("none", "das")], policy)


def test_the_default_experiment_needs_little(tiny_policy: str) -> None:
    check_memory([composed_run(f"arm={arm}") for arm in ("none", "das")], tiny_policy)
