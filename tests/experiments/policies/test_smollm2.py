"""Where SmolLM2 is found, and what is said where it is not.

With the package, three steps of training without drafts and with them are equal in every bit.
"""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from scripts import run_script

from experiments.policies import smollm2
from experiments.run.errors import UserError

INSTALLED = (smollm2.PACKAGES / smollm2.GGUF).exists()


def no_hub(*args: object, **options: object) -> str:
    raise LocalEntryNotFoundError("no network")


def test_one_line_where_neither_package_nor_hub_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_hub)
    with pytest.raises(UserError, match=r"run `make real-policy`") as refused:
        smollm2.find_smollm2(tmp_path, print, packages=tmp_path)
    assert "\n" not in str(refused.value)


def test_a_file_with_another_digest_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / smollm2.GGUF
    file.parent.mkdir()
    file.write_bytes(b"GGUF")
    with pytest.raises(UserError, match="is not what was published"):
        smollm2.find_smollm2(tmp_path / "cache", lambda line: None, packages=tmp_path)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="SmolLM2 is not installed: run `make real-policy`")
def test_three_steps_are_equal_in_every_bit(tmp_path: Path) -> None:
    run_script(
        "run.py",
        *("arms=[none,das]", "policy=smollm2", "data=words", "data.problems=1", "drafter.remember=distributions"),
        *("trainer.max_steps=3", "trainer.num_generations=4", "trainer.per_device_train_batch_size=2"),
        *("+trainer.gradient_accumulation_steps=2", "trainer.max_completion_length=32", "trainer.learning_rate=1e-4"),
        *("engine.max_num_seqs=4", "engine.max_model_len=256", "+engine.extra.num_gpu_blocks_override=16"),
        *("reward=brevity", "checkpoint.every=0", "wandb=off", f"hydra.run.dir={tmp_path}"),
    )
    result = json.loads((tmp_path / "result.json").read_text())
    identical = result["identical"]["das"]
    assert identical.pop("first_difference") is None
    assert {"completions", "losses", "final_weights", "optimizer"} <= identical.keys()
    assert all(identical.values())
    assert result["arms"]["das"]["accepted"]["mean"] > 0
