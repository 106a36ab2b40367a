"""What is said where SmolLM2 is not found."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from experiments.policies import smollm2
from experiments.run.errors import UserError


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
