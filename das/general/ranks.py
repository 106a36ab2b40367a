"""Ranks: the processes that train one policy together. Each has its own engine and, if there are GPUs, its own GPU.

torchrun or `accelerate launch` starts them and passes the rank through the environment. In a process started without a
launcher, the functions here do nothing and import nothing heavy.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

Value = TypeVar("Value")
# torchrun and accelerate set these variables to tell a trainer its rank. An engine in another process would take that
# rank for its own.
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
PATIENCE = timedelta(hours=2)  # a rank whose rollout has ended waits for the slowest one's


def count() -> int:
    """Returns the number of launched processes; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Returns this process's rank, counted from 0."""
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Returns whether this is rank 0, which writes files and prints."""
    return rank() == 0


def gather(value: Any, group: Any = None) -> list[Any]:
    """Returns every rank's `value`, in rank order. Values must be picklable, and all ranks must call it. group: torch's
    group of all ranks over which they travel; None: the default one."""
    if count() == 1:
        return [value]
    from torch import distributed

    values: list[Any] = [None] * count()
    distributed.all_gather_object(values, value, group=group)
    return values


def gather_beside() -> Callable[[Any], list[Any]]:
    """Returns a `gather` for another thread, which may call it while this one exchanges other things. All ranks must
    call this function. Values travel by the host's network, never by GPUs."""
    from torch import distributed

    return partial(gather, group=distributed.new_group(backend="gloo", timeout=PATIENCE))


def from_main(function: Callable[[], Value]) -> Value:
    """Call `function` on the main rank only, and return its result on every rank.

    If the function raises an error, every rank raises it. All ranks must call `from_main`. Results must be picklable.
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
    return value


def scatter(values: Sequence[Value]) -> Value:
    """Send one value from the main rank to each rank. Returns this rank's value. values: one for each rank, in rank
    order; those passed on other ranks are ignored.

    All ranks must call it. Values must be picklable.
    """
    if count() == 1:
        (own,) = values
        return own
    from torch import distributed

    taken: list[Any] = [None]
    distributed.scatter_object_list(taken, list(values) if is_main() else None)
    return taken[0]


def asks_for_fsdp() -> bool:
    """Returns whether FSDP was asked for: by the launcher or, once the accelerator is built, by the trainer's
    arguments."""
    return is_set("ACCELERATE_USE_FSDP")


def fsdp_on_cpu() -> bool:
    """Returns whether several ranks asked for FSDP on CPUs. accelerate does not support FSDP on CPUs, and silently uses
    DDP."""
    import torch

    return asks_for_fsdp() and count() > 1 and not torch.cuda.is_available()


def is_set(name: str) -> bool:
    """Returns whether the launcher set this environment variable to true."""
    return os.environ.get(name, "false").lower() == "true"
