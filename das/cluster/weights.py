"""Packs tensors into bytes, to send them from the trainer to an engine in another process."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

PART_BYTES = 256 * 2**20  # weights travel in parts of about this size


@dataclass(frozen=True)
class WeightsPart:
    """Some tensors of the weights. tensors: name, type and shape of each. data: their bytes, one tensor after the
    other."""

    tensors: list[tuple[str, str, list[int]]]
    data: np.ndarray  # uint8
    drafter: bool = False  # True: weights of the drafter that is trained in the run; False: of the policy


def packed(named_tensors: Iterable[tuple[str, torch.Tensor]], drafter: bool = False) -> Iterator[WeightsPart]:
    """Yields copies of the tensors, in parts of about PART_BYTES.

    drafter: whether these tensors belong to the drafter that is trained in the run.
    """
    tensors: list[tuple[str, str, list[int]]] = []
    data: list[np.ndarray] = []
    for name, tensor in named_tensors:
        held = tensor.detach().to("cpu").contiguous()
        tensors.append((name, str(held.dtype).removeprefix("torch."), list(held.shape)))
        data.append(held.reshape(-1).view(torch.uint8).numpy().copy())
        if sum(map(len, data)) >= PART_BYTES:
            yield WeightsPart(tensors, np.concatenate(data), drafter)
            tensors, data = [], []
    if tensors:
        yield WeightsPart(tensors, np.concatenate(data), drafter)


def unpacked(part: WeightsPart) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields name and value of each tensor of a part."""
    start = 0
    for name, dtype_name, shape in part.tensors:
        dtype = getattr(torch, dtype_name)
        stop = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        data = part.data[start:stop].copy()  # what Ray shares is read-only, and a slice may begin anywhere
        yield name, torch.from_numpy(data).view(dtype).view(shape)
        start = stop
