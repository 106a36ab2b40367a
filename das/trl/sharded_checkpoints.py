"""Checkpoints of a policy that transformers sharded when it was loaded (das/weights/sharding.py), from which a training
continues. transformers itself refuses them: it writes whole weights, but neither reads these into shards nor writes a
sharded optimizer.

Files hold whole tensors, which all ranks put together and the main rank writes. So any number of ranks can read them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

OPTIMIZER, SCHEDULER, WEIGHTS = "optimizer.pt", "scheduler.pt", "model.safetensors"  # transformers' names
SAVED_LATER = "no"  # the save strategy with which transformers builds such a trainer


@contextmanager
def checkpoints_accepted(args: Any, model: Any) -> Iterator[None]:
    """Inside the `with` block, transformers builds a trainer of such a policy although it is to write checkpoints.
    Afterwards call `complete`.

    args: the trainer's; None: transformers' defaults. model: the policy, or where it is loaded from.
    """
    sharded = getattr(model, "is_distributed_loading_by_transformers", False)
    loaded_with = getattr(args, "model_init_kwargs", None) or {}
    if args is None or not (sharded or "distributed_config" in loaded_with):
        yield
        return
    strategy, args.save_strategy = args.save_strategy, type(args.save_strategy)(SAVED_LATER)
    try:
        yield
    finally:
        args.save_strategy = strategy


def complete(trainer: Any) -> None:
    """Let a trainer save and resume what it trains, if its policy is sharded so."""
    if getattr(trainer.model, "is_distributed_loading_by_transformers", False):
        trainer._save_optimizer_and_scheduler = partial(_save_optimizer_and_scheduler, trainer)
        trainer._load_optimizer_and_scheduler = partial(_load_optimizer_and_scheduler, trainer)
        trainer._load_from_checkpoint = partial(_load_weights, trainer)


def _save_optimizer_and_scheduler(trainer: Any, folder: str) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(trainer.model, trainer.optimizer.optimizer, options=whole)
    if trainer.args.should_save:  # the other ranks hold nothing
        torch.save(state, Path(folder) / OPTIMIZER)
        torch.save(trainer.lr_scheduler.state_dict(), Path(folder) / SCHEDULER)


def _load_optimizer_and_scheduler(trainer: Any, folder: str | None) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    if folder is None:
        return
    state = torch.load(Path(folder) / OPTIMIZER, map_location="cpu", weights_only=True, mmap=True)
    whole = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(trainer.model, trainer.optimizer.optimizer, state, options=whole)
    trainer.lr_scheduler.load_state_dict(torch.load(Path(folder) / SCHEDULER, weights_only=True))


def _load_weights(trainer: Any, folder: str, model: Any = None) -> None:
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    whole = StateDictOptions(full_state_dict=True, strict=False)  # tied weights are written once
    weights: dict[str, Any] = dict(load_file(Path(folder) / WEIGHTS))
    set_model_state_dict(model or trainer.model, weights, options=whole)
