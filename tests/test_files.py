"""Files are written whole, and what is read unpacks into no more than it says."""

import gzip
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from analysis.read import unpacked
from das.general.arrays import load_arrays, save_arrays
from das.general.files import replacing, write_text


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


def test_a_link_where_the_new_content_goes_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("precious")
    (tmp_path / f"result.json.{os.getpid()}.tmp").symlink_to(tmp_path / "precious.txt")
    (tmp_path / "other.json").symlink_to(tmp_path / "precious.txt")
    with pytest.raises(OSError, match="symbolic links"):
        write_text(tmp_path / "result.json", "new")
    write_text(tmp_path / "other.json", "new")
    assert (tmp_path / "precious.txt").read_text() == "precious"


def said(packed: bytes, size: int) -> bytes:
    return packed[:-4] + (size % 2**32).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (said(gzip.compress(b"0" * 10_000_000, mtime=0), 10), "more than the 10 bytes that it says"),
        (
            gzip.compress(b"0" * 10_000_000, mtime=0) + gzip.compress(b"1", mtime=0),
            "more than the 1 bytes that it says",
        ),
        (said(gzip.compress(b"0" * 10, mtime=0), -1), f"into {2**32 - 1} bytes, more than"),
        (gzip.compress(b"0" * 10_000_000, mtime=0)[:-4000], "more than|ended before"),
        (said(gzip.compress(b"0" * 10, mtime=0), 11), "Incorrect length"),
        (b"\x1f", "Not a gzipped|ended before"),
    ],
)
def test_what_unpacks_into_more_than_it_says_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises((ValueError, OSError, EOFError), match=words):
        unpacked(tmp_path / "a.gz")
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"text" * 1000))
    assert unpacked(tmp_path / "a.gz") == b"text" * 1000


def test_packed_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save_arrays(path, {"kind": np.array("numbers"), "zeros": np.zeros(100_000)})
    assert load_arrays(path, "numbers")["zeros"].size == 100_000
    np.savez_compressed(path, kind=np.array("numbers"), zeros=np.zeros(100_000_000, np.int8))
    with pytest.raises(ValueError, match=r"it has \d+ bytes and unpacks into 1000\d+"):
        load_arrays(path, "numbers")
