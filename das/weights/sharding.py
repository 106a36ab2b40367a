"""Shard a policy by FSDP 2 on CPUs, which accelerate cannot: transformers does it with torch's `fully_shard`, over
gloo."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from das import ranks


def sharded_loading() -> dict[str, Any]:
    """Returns the arguments of `from_pretrained` that shard a policy over all ranks; empty if accelerate shards it, or
    if FSDP was not asked for.
    """
    return {"distributed_config": {"fsdp_size": ranks.count()}} if ranks.fsdp_on_cpu() else {}


def whole(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors one at a time, with their shards put together. All ranks must iterate to the end."""
    for name, tensor in named_tensors:
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
