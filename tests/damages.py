"""Damages to files and folders: each is a function of the folder."""

from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], object]  # changes a file, or files of a folder


def removed(pattern: str) -> Damage:
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]


def written(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def halved(name: str) -> Damage:
    return lambda folder: halve(folder / name)


def halve(path: Path) -> None:
    """Cut a file in the middle."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def linked(path: Path) -> None:
    """Move a file or a folder up, and leave a link to it."""
    outside = path.parents[1] / "outside"
    path.rename(outside)
    path.symlink_to(outside)
