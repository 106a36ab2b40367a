"""Files are written whole, by one function."""

import os
import re
import signal
from pathlib import Path

import pytest
from scripts import ROOT

from das.files import add_rows, replacing, write_text

WRITES = re.compile(
    r"""\.write_(text|bytes)\(|open\([^)\n]*"[wax]b?"|\.savefig\((?!buffer|file|to\b)|np\.save[z(]|json\.dump\("""
)
NOT_WHOLE = {
    "das/files.py",  # the one writer
    "das/arrays.py",  # into its stream
    # Output of a process, as it comes.
    "experiments/run/output.py", "experiments/harness/failures.py", "experiments/harness/runs/one_by_one.py",
    "experiments/gpu/child.py", "experiments/tasks/train.py",
    "experiments/harness/resume.py",  # the lock
    "experiments/tasks/kill_test.py",  # damage, on purpose
    "rewards/forkserver.py", "rewards/isolation.py",  # the kernel's files
}  # fmt: skip


def test_a_block_that_raises_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_text(path, "old")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"ne")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_kill_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_text(path, "old")
    child = os.fork()
    if not child:
        with replacing(path) as file:
            file.write(b"new" * 100_000)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert path.read_text() == "old"
    write_text(path, "newer")
    assert path.read_text() == "newer"


def test_rows_are_added(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add_rows(path, [{"step": 1}])
    add_rows(path, [{"step": 2}, {"step": 3}])
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_nothing_else_writes_files() -> None:
    writers = {
        str(path.relative_to(ROOT))
        for folder in ("das", "experiments", "analysis", "rewards")
        for path in (ROOT / folder).rglob("*.py")
        if WRITES.search(path.read_text())
    }
    assert writers == NOT_WHOLE
