"""Digests of numbers (the beginning of a SHA-256): equal digests mean equal bits."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from das.general import ranks

PIECE = 2**24  # how many numbers of a tensor are copied to the host at once (64 MB as float32)


def digest(*arrays: Sequence[Any] | np.ndarray) -> str:
    """Returns a digest of the arrays' bytes, types and shapes: 16 hexadecimal digits."""
    sha = hashlib.sha256()
    for array in arrays:
        data = np.ascontiguousarray(array)
        sha.update(str((data.dtype.str, data.shape)).encode() + data.tobytes())
    return sha.hexdigest()[:16]


def weights_digest(model: torch.nn.Module) -> str:
    """Returns a digest of all parameters of the model, taken in the order of their names."""
    return tensors_digest(parameter for _, parameter in sorted(model.named_parameters()))


def optimizer_digest(optimizer: torch.optim.Optimizer) -> str:
    """Returns a digest of an optimizer's state, parameter by parameter (for Adam: step, first and second moment)."""
    state = optimizer.state_dict()["state"]
    return tensors_digest(value for index in sorted(state) for _, value in sorted(state[index].items()))


def of_all_ranks(own: str) -> str:
    """Make one digest for the run. own: this rank's digest. All ranks must call this function.

    Returns `own` if all ranks have the same digest (DDP), and the digest of all digests if each rank holds a shard.
    """
    digests = ranks.gather(own)
    return own if len(set(digests)) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def tensors_digest(values: Iterable[Any]) -> str:
    """Compute `digest` of the values as float32 arrays. Tensors are copied to the host piece by piece.

    For a sharded tensor, the digest covers only this rank's shard.
    """
    sha = hashlib.sha256()
    for value in values:
        tensor = torch.as_tensor(value).detach()
        local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        sha.update(str((np.dtype(np.float32).str, tuple(local.shape) or (1,))).encode())
        for piece in _pieces(local):
            sha.update(piece.contiguous().float().cpu().numpy().data)
    return sha.hexdigest()[:16]


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensor's numbers in C order, at most PIECE at a time, without copying the whole tensor."""
    if tensor.numel() <= PIECE:
        yield tensor
    elif tensor.ndim == 1:
        yield from tensor.split(PIECE)
    else:
        rows = PIECE // (tensor.numel() // len(tensor))
        for part in tensor.split(rows) if rows else tensor:
            yield from _pieces(part)
