"""experiments.cache: a folder is made once, and only complete folders get their name."""

from pathlib import Path

import pytest

from experiments.cache import cached_folder


def test_folder_is_written_once(tmp_path: Path) -> None:
    writes: list[Path] = []

    def write(folder: Path) -> None:
        writes.append(folder)
        (folder / "weights").write_text("1")

    final = tmp_path / "cache" / "policy"
    assert cached_folder(final, write) == cached_folder(final, write) == final
    assert len(writes) == 1
    assert (final / "weights").read_text() == "1"


def test_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "half").write_text("1")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_folder(tmp_path / "policy", write)
    assert list(tmp_path.iterdir()) == []


def test_first_of_two_processes_wins(tmp_path: Path) -> None:
    final = tmp_path / "policy"

    def write(folder: Path) -> None:
        (folder / "maker").write_text("second")
        final.mkdir()
        (final / "maker").write_text("first")

    assert (cached_folder(final, write) / "maker").read_text() == "first"
    assert list(tmp_path.iterdir()) == [final]
