"""The weight check: after each sync, the engine must hold the trainer's weights, bit for bit, and nothing older.

Every sync compares a sample of the trainer's tensors with what the engine holds and computes with
(das/weights/loaded_weights.py). Ranks exchange the result: if one finds an error, all stop.

A fingerprint tells whether weights are still the same, without a copy of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from das.general import ranks
from das.general.errors import EngineError, WeightSyncError, reason_of

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # an integer of each size, by bytes


def fingerprint(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """Returns a number for each tensor: the sum of its bits, read as integers.

    It reads each tensor once, where it lies: 23 ms for 135 million weights in float32 on one core. Of a sharded tensor
    it reads this rank's shard.
    """
    sums = [_sum_of_bits(_own_part(tensor).detach()) for tensor in tensors]
    by_device: dict[torch.device, list[int]] = {}
    for device in {each.device for each in sums}:  # one wait for each device
        by_device[device] = torch.stack([each for each in sums if each.device == device]).tolist()
    return tuple(by_device[each.device].pop(0) for each in sums)


def _own_part(tensor: Any) -> torch.Tensor:
    """Returns what this rank has of a tensor that FSDP 2 or ZeRO-3 may have sharded."""
    part: torch.Tensor = getattr(tensor, "ds_tensor", getattr(tensor, "_local_tensor", tensor))
    return part


def _sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().reshape(-1)
    if not flat.numel():
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    size, per_word = flat.element_size(), 8 // flat.element_size()
    words = flat.numel() // per_word * per_word if flat.storage_offset() * size % 8 == 0 else 0
    rest = flat[words:].view(BITS[size]).sum(dtype=torch.int64)
    return flat[:words].view(torch.int64).sum() + rest if words else rest


Tensors = list[tuple[str, torch.Tensor]]  # by name


class WeightSample:
    """Copies of some of the trainer's tensors, to check a sync: one tensor in `every`, and others at the next sync."""

    def __init__(self, every: int, syncs: int = 0):
        """every: one tensor in so many is checked after a sync; at least 1, else EngineError is raised. syncs: the
        number of syncs so far."""
        if every < 1:
            raise EngineError(f"weight_check_every={every}: set it to 1 or more syncs")
        self.every = every
        self.syncs = syncs
        self.restart()

    def restart(self) -> None:
        """Begin the present sync anew: forget the tensors that it has loaded so far."""
        self._tensors: Tensors = []
        self._num_loaded = 0  # number of tensors that this sync has loaded so far

    def watch(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Pass on the tensors that a sync loads, as they are, and keep the sample.

        TRL takes merged LoRA weights apart again and frees gathered ones, so the sample is a copy. It is kept on the
        host, to spare the GPU's memory.
        """
        for name, tensor in named_tensors:
            if (self._num_loaded + self.syncs) % self.every == 0:
                self._tensors.append((name, tensor.detach().to("cpu", copy=True)))
            self._num_loaded += 1
            yield name, tensor

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Choose the sample, by name, for a sync that loads these tensors into another process. The next sync gets
        another sample.
        """
        sample = [name for index, name in enumerate(names) if (index + self.syncs) % self.every == 0]
        self.syncs += 1
        return sample

    def take(self) -> Tensors:
        """Return the sample, after a sync. The next sync gets another sample. Raises WeightSyncError if the sync has
        loaded nothing."""
        tensors, num_loaded = self._tensors, self._num_loaded
        self.syncs += 1
        self.restart()
        if not num_loaded:
            raise WeightSyncError("the new weights did not reach the engine: none was loaded")
        return tensors


def problem_of(lost: Iterable[str], cached_blocks: int = 0) -> str:
    """Returns, in words, the problem that an engine has after a sync; empty if there is none.

    lost: what each of its ranks says of the sample; empty if all arrived. cached_blocks: those of its prefix cache.
    """
    for of_rank in filter(None, lost):
        return f"the new weights did not reach the engine: {of_rank}"
    if cached_blocks:
        return (
            f"the engine's prefix cache holds {cached_blocks} blocks of older weights: end all requests before the "
            "next training step, or set enable_prefix_caching to False"
        )
    return ""


def check_together(check: Callable[[], str], step: int) -> None:
    """Run `check` on every rank. If it returns a problem or raises on any rank, raise WeightSyncError on all ranks.

    All ranks must call it. If there is only one rank, an error that `check` raises is passed on unchanged.
    """
    try:
        problem = check()
    except WeightSyncError as error:
        problem = str(error)
    except Exception as error:
        if ranks.count() == 1:
            raise
        problem = f"{type(error).__name__}: {reason_of(error)}"
    for rank, theirs in enumerate(ranks.gather(problem)):
        if theirs:
            where = f" (rank {rank})" if ranks.count() > 1 else ""
            raise WeightSyncError(f"step {step}: {theirs}{where}")


def whole(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors one at a time, with their shards put together. All ranks must iterate to the end."""
    for name, tensor in named_tensors:
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
