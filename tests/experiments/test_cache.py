"""experiments.policies: a folder is made once, and only complete folders get their name."""

import time
from pathlib import Path
from threading import Event, Thread

import pytest

from experiments.policies import cached_folder


def test_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "half").write_text("1")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_folder(tmp_path / "policy", write)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_the_second_of_two_waits_for_the_first(tmp_path: Path) -> None:
    final = tmp_path / "policy"
    first_writes, writers = Event(), []

    def write(folder: Path) -> None:
        writers.append(folder)
        first_writes.set()
        time.sleep(0.2)  # the other one comes meanwhile
        (folder / "weights").write_text("1")

    first = Thread(target=cached_folder, args=(final, write))
    first.start()
    first_writes.wait()
    assert (cached_folder(final, write) / "weights").read_text() == "1"
    first.join()
    assert len(writers) == 1
    assert sorted(tmp_path.iterdir()) == [tmp_path / ".lock", final]
