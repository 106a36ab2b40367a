"""The processes that train one policy together. Each has a rank, an engine and, if there are GPUs, a GPU of its own.

torchrun or `accelerate launch` starts them and tells each its rank through the environment. In a process that was
started plainly, the functions here do nothing and import nothing heavy.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")
# Ranks wait for the slowest rank's rollout, and for the main rank while it makes the policy.
PATIENCE = timedelta(hours=2)


def count() -> int:
    """How many processes were launched; 1 if this one was started plainly."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this process among them, counted from 0."""
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Whether this is the process that writes files and prints."""
    return rank() == 0


def join() -> None:
    """Form the process group, with NCCL if there are GPUs and gloo otherwise. TRL finds and uses it."""
    if count() > 1:
        import torch
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


def gather(value: Any) -> list[Any]:
    """The `value` of every rank, in rank order, on every rank. Values must be picklable, and all ranks must call it."""
    if count() == 1:
        return [value]
    from torch import distributed

    values: list[Any] = [None] * count()
    distributed.all_gather_object(values, value)
    return values


def from_main(function: Callable[[], Value]) -> Value:
    """What `function` returns on the main rank, on every rank. What it raises there, every rank raises.

    It runs on the main rank alone, and all ranks must call this. Values must be picklable.
    """
    if count() == 1:
        return function()
    from torch import distributed

    answer: list[Any] = [None, None]
    if is_main():
        try:
            answer = [function(), None]
        except Exception as error:
            answer = [None, error]
    distributed.broadcast_object_list(answer)
    value, failure = answer
    if failure is not None:
        raise failure
    found: Value = value
    return found


def scatter(values: Sequence[Value]) -> Value:
    """This rank's of the main rank's `values`, of which there is one a rank. Those that other ranks give don't count.

    All ranks must call it. Values must be picklable.
    """
    if count() == 1:
        (own,) = values
        return own
    from torch import distributed

    taken: list[Any] = [None]
    distributed.scatter_object_list(taken, list(values) if is_main() else None)
    own = taken[0]
    return own


@contextmanager
def main_first() -> Iterator[None]:
    """The main process runs the body first, alone. The others run it afterwards, and find the files that it left.

    If the main process fails, it says why, and the others exit silently.
    """
    if not is_main():
        try:
            gather(None)
        except RuntimeError:  # the main process has gone
            sys.exit(1)
    yield
    if count() > 1 and is_main():
        gather(None)


def own_file(path: Path) -> Path:
    """This rank's version of a file that every rank writes: history.npz on rank 0, history_rank1.npz on rank 1 ..."""
    return path if is_main() else path.with_name(f"{path.stem}_rank{rank()}{path.suffix}")


def own_folder(folder: Path) -> Path:
    """This rank's part of a folder that all ranks write to: the folder itself on rank 0, rank1 in it on rank 1 ..."""
    return folder if is_main() else folder / f"rank{rank()}"
