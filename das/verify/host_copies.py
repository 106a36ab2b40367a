"""Bring small arrays from the host to the device, in one copy that the host does not wait for.

A copy from pageable memory makes the host wait until the device has done all the work queued so far, about as long as a
pass of the model takes. A copy from pinned memory is queued like a kernel.
"""

from collections.abc import Mapping

import numpy as np
import torch


def on_device(device: torch.device, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Returns the arrays as tensors on `device`, int32 or float32, with the same names and shapes.

    arrays: name -> array; integers must fit into 32 bits. On the CPU the tensors share the arrays' memory where they
    can.
    """
    narrow = {
        name: np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else np.int32)
        for name, array in arrays.items()
    }
    if device.type == "cpu":
        return {name: torch.from_numpy(array) for name, array in narrow.items()}
    staged = torch.empty(
        sum(array.size for array in narrow.values()), dtype=torch.int32, pin_memory=device.type == "cuda"
    )
    np.concatenate([array.reshape(-1).view(np.int32) for array in narrow.values()], out=staged.numpy())
    parts = staged.to(device, non_blocking=True).split([array.size for array in narrow.values()])
    return {
        name: (part.view(torch.float32) if array.dtype == np.float32 else part).view(array.shape)
        for (name, array), part in zip(narrow.items(), parts, strict=True)
    }
