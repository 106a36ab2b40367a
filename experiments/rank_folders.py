"""Where each of several processes that train together writes, and in which order they do so."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from das.general import ranks

# Ranks wait for the slowest rank's rollout, and for the main rank while it makes the policy.
PATIENCE = timedelta(hours=2)


def join() -> None:
    """Create the process group (NCCL with GPUs, else gloo). TRL finds and uses it."""
    if ranks.count() > 1:
        import torch
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


@contextmanager
def main_first() -> Iterator[None]:
    """Run the `with` block on the main process first, then on the others, which find the main process's files.

    If the main process fails, it prints the reason, and the others exit silently.
    """
    if not ranks.is_main():
        try:
            ranks.gather(None)
        except RuntimeError:  # the main process has gone
            sys.exit(1)
    yield
    if ranks.count() > 1 and ranks.is_main():
        ranks.gather(None)


def own_file(path: Path) -> Path:
    """Returns this rank's path for a file that every rank writes: history.npz on rank 0, history_rank1.npz on rank 1
    ..."""
    return path if ranks.is_main() else path.with_name(f"{path.stem}_rank{ranks.rank()}{path.suffix}")


def own_folder(folder: Path) -> Path:
    """Returns this rank's part of a folder that all ranks write to: the folder itself on rank 0, rank1/ on rank 1
    ..."""
    return folder if ranks.is_main() else folder / f"rank{ranks.rank()}"
