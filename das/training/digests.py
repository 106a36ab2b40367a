"""Short SHA-256 of numbers: equal digests mean equal bits."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def digest(*arrays: Sequence[Any] | np.ndarray) -> str:
    """Digest of the arrays' bytes, types and shapes: 16 hexadecimal digits."""
    sha = hashlib.sha256()
    for array in arrays:
        data = np.ascontiguousarray(array)
        sha.update(str((data.dtype.str, data.shape)).encode() + data.tobytes())
    return sha.hexdigest()[:16]


def weights_digest(model: torch.nn.Module) -> str:
    """Digest of all parameters, in the order of their names."""
    return digest(*(_array(p) for _, p in sorted(model.named_parameters())))


def optimizer_digest(optimizer: torch.optim.Optimizer) -> str:
    """Digest of an optimizer's state in parameter order (Adam: step, first and second moment of each parameter)."""
    state = optimizer.state_dict()["state"]
    return digest(*(_array(value) for index in sorted(state) for _, value in sorted(state[index].items())))


def _array(value: Any) -> np.ndarray:
    """The values as float32; of a sharded tensor, the part that this rank holds."""
    tensor = torch.as_tensor(value).detach()
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.float().cpu().numpy()
