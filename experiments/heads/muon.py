"""Muon (Jordan et al., 2024) as torch has it, on CPUs too that do not multiply in bfloat16."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _NoBfloat16(TorchFunctionMode):
    """Inside it, `tensor.bfloat16()` is a copy in the tensor's own type."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.bfloat16:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


class Muon(torch.optim.Muon):
    """torch's Muon. Where a CPU lacks AVX-512 it orthogonalizes its updates in their own type.

    torch orthogonalizes in bfloat16. Without AVX-512 its product of two such matrices takes some 10 times as long as in
    float32.
    """

    def step(self, closure: Any = None) -> Any:
        """As torch's."""
        on_cpu = self.param_groups[0]["params"][0].device.type == "cpu"
        if not on_cpu or "AVX512" in torch.backends.cpu.get_cpu_capability():
            return super().step(closure)
        with _NoBfloat16():
            return super().step(closure)
