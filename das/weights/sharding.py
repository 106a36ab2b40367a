"""Put the shards of a policy together that FSDP 2 has sharded."""

from collections.abc import Iterable, Iterator

import torch
from torch.distributed.tensor import DTensor


def whole(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors one at a time, with their shards put together. All ranks must iterate to the end."""
    for name, tensor in named_tensors:
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
