"""Checkpoints on disk are complete or do not exist. A torn, altered or swapped one is noticed before it is used."""

from pathlib import Path

import pytest
from damages import Damage, halved, written

from experiments.run.errors import CheckpointError
from experiments.training import checkpoint


def write(folder: Path, step: int, run_identity: dict[str, object] | None = None) -> Path:
    scratch = folder.parent / "scratch"
    (scratch / "inner").mkdir(parents=True)
    (scratch / "model.safetensors").write_bytes(bytes(range(256)) * 20)
    (scratch / "inner" / "state.json").write_text("{}")
    (scratch / checkpoint.OPTIMIZER).write_bytes(b"moments")
    checkpoint.seal(scratch, folder, step, run_identity or {})
    assert not scratch.exists()
    return checkpoint.step_folder(folder, step)


def test_a_sealed_checkpoint_is_complete(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoints", 12, {"policy": "abc"})
    checkpoint.verify(tmp_path / "checkpoints", 12)
    assert checkpoint.read_manifest(tmp_path / "checkpoints", 12)["about"] == {"policy": "abc"}
    assert (path / "inner" / "state.json").read_text() == "{}"
    assert checkpoint.steps(tmp_path / "checkpoints") == [12]


def rename(path: Path) -> None:
    path.rename(path.with_name("step_00012x"))
    write(path.parent, 11)
    checkpoint.step_folder(path.parent, 11).rename(path)


WEIGHTS, MANIFEST = "model.safetensors", checkpoint.MANIFEST


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (halved(WEIGHTS), "2560 of 5120 bytes"),
        (written(WEIGHTS, bytes(5120)), "SHA-256"),
        (written("pytorch_model.bin", b"\x80\x04."), "not part of the checkpoint"),
        (lambda path: (path / MANIFEST).write_text((path / MANIFEST).read_text().replace("abc", "abd")), "damaged"),
        (rename, "damaged"),
    ],
)
def test_damage_is_noticed(damage: Damage, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoints", 12, {"policy": "abc"})
    damage(path)
    with pytest.raises(CheckpointError, match=message) as raised:
        checkpoint.verify(tmp_path / "checkpoints", 12)
    assert "step_00012" in str(raised.value)


def test_a_finished_run_keeps_its_last_policy(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (8, 12):
        write(folder, step)
    checkpoint.keep_policy(folder)
    assert checkpoint.steps(folder) == [12]
    assert not (checkpoint.step_folder(folder, 12) / checkpoint.OPTIMIZER).exists()
    checkpoint.verify(folder, 12, ended=True)
    with pytest.raises(CheckpointError, match=r"optimizer\.pt is missing"):
        checkpoint.verify(folder, 12)  # a run that goes on would begin with a new optimizer
    assert checkpoint.read_manifest(folder, 12)["files"][checkpoint.OPTIMIZER], "what was written can still be compared"
    (checkpoint.step_folder(folder, 12) / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        checkpoint.verify(folder, 12, ended=True)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (4, 8, 12):
        write(folder, step)
    (folder / ".deleted-step_00002").mkdir()
    checkpoint.prune(folder, 2)
    assert checkpoint.steps(folder) == [12, 8]
    assert sorted(path.name for path in folder.iterdir()) == ["step_00008", "step_00012"]
