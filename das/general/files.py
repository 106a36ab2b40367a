"""Write files so that a reader finds the old content or the new one, also after a kill and after a loss of power."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a stream; what the block writes into it becomes the file's content when the block ends. If the block raises,
    the file stays what it was. A process that is killed amid the block leaves NAME.PID.tmp beside it. A link at either
    name is not followed."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # tensor-parallel ranks save the same history at once
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole."""
    with replacing(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole, in UTF-8."""
    write_bytes(path, text.encode())


def flush(path: Path) -> None:
    """Make the disk store a file's content, or the names of a folder's files (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
