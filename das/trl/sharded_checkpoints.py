"""Checkpoints of a policy that transformers sharded when it was loaded (`whole`), from which a training
continues. transformers itself refuses them: it writes whole weights, but neither reads these into shards nor writes a
sharded optimizer.

Files hold whole tensors, which all ranks put together and the main rank writes. So any number of ranks can read them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from das.general import ranks
from das.general.errors import reason_of

OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"  # transformers' names
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
    model = trainer.model
    if getattr(model, "is_distributed_loading_by_transformers", False):
        # transformers' barrier would keep the other ranks while the main one, whose disk is full, raises.
        model.barrier_after_gathered_checkpoint_save = lambda config: None
        model.save_pretrained = partial(_save_weights, model.save_pretrained)
        trainer._save_optimizer_and_scheduler = partial(_save_optimizer_and_scheduler, trainer)
        trainer._load_optimizer_and_scheduler = partial(_load_optimizer_and_scheduler, trainer)
        trainer._load_from_checkpoint = partial(_load_weights, trainer)
        trainer._load_best_model = lambda: _load_weights(trainer, trainer.state.best_model_checkpoint)


def _write_together(what: str, write: Callable[[], None]) -> None:
    """Call `write` on all ranks. Raises OSError on all of them if one could not write, since a rank that goes on would
    wait for that one."""
    cause, problem = None, ""
    try:
        write()
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save raises the last for a full disk
        cause, problem = error, reason_of(error)
    if problems := [theirs for theirs in ranks.gather(problem) if theirs]:
        raise OSError(f"{what} could not be written: {problems[0]}") from cause


def _save_weights(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    _write_together("the weights", partial(original, *args, **kwargs))


def _save_optimizer_and_scheduler(trainer: Any, folder: str) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(trainer.model, trainer.optimizer.optimizer, options=whole)

    def write() -> None:
        if trainer.args.should_save:  # the other ranks hold nothing
            torch.save(state, Path(folder) / OPTIMIZER)
            torch.save(trainer.lr_scheduler.state_dict(), Path(folder) / SCHEDULER)

    _write_together("the optimizer's state", write)


def _load_optimizer_and_scheduler(trainer: Any, folder: str | None) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    if folder is None:
        return
    state = torch.load(Path(folder) / OPTIMIZER, map_location="cpu", weights_only=True, mmap=True)
    whole = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(trainer.model, trainer.optimizer.optimizer, state, options=whole)
    trainer.lr_scheduler.load_state_dict(torch.load(Path(folder) / SCHEDULER, weights_only=True))


def _load_weights(trainer: Any, folder: str, model: Any = None) -> None:
    import transformers
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    model = model or trainer.model
    # transformers reads the files: it knows several of them, and names that differ from those in memory (experts).
    kind = getattr(transformers, model.config.architectures[0])
    weights = kind.from_pretrained(folder, dtype=model.dtype).state_dict()
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))
