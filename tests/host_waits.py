"""Count how often a pass copies to and from a device, and waits for it. Meta tensors stand in for the device."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class HostWaits(TorchDispatchMode):
    """Counts copies to and from a device, and what makes the host wait for it: copies that block, and its values read
    one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.copies: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name in ("aten::_to_copy", "aten::copy_"):
            source = args[1] if name == "aten::copy_" else args[0]
            target = args[0].device if name == "aten::copy_" else torch.device(kwargs.get("device") or source.device)
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            if source.device != target:
                copy = f"{name} {tuple(source.shape)} {source.device} -> {target}"
                self.copies.append(copy)
                self.waits += [copy] * waits
            if target.type == "cpu" and source.device.type == "meta":
                return torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)  # what the host would read
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero"):
            self.waits.append(name)
        return func(*args, **kwargs)
