"""Packs tensors into bytes, to send them from the trainer to an engine in another process."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from das.cluster.messages import WeightsPart

PART_BYTES = 256 * 2**20  # weights travel in parts of about this size


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
    return split(part.tensors, part.data)


def split(
    tensors: list[tuple[str, str, list[int]]], whole: np.ndarray | torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields name and copy of each tensor whose bytes lie in `whole`, uint8 [bytes], in order. tensors: see
    WeightsPart."""
    start = 0
    for name, dtype_name, shape in tensors:
        dtype = getattr(torch, dtype_name)
        stop = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        data = whole[start:stop]  # what Ray shares is read-only, and a slice may begin anywhere
        own = data.clone() if isinstance(data, torch.Tensor) else torch.from_numpy(data.copy())
        yield name, own.view(dtype).view(shape)
        start = stop
