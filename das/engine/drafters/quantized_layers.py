"""Let the linear layers of a vLLM model compute with rounded weights (quantized.py) while the model drafts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from das.engine.drafters import cpu_linears, cuda_linears
from das.engine.drafters.quantized import Linear


def linear_maker(weights: str) -> Callable[[torch.Tensor], Linear]:
    """Returns the function that makes a layer from a weight [outputs, inputs] on this device. weights: one of
    FORMATS."""
    from vllm.platforms import current_platform

    linears = cpu_linears if current_platform.is_cpu() else cuda_linears
    return {"w8a8": linears.w8a8, "w4": linears.w4}[weights]


@dataclass(frozen=True)
class _Method:
    """Takes the place of a layer's quant_method: computes with the quantized weights."""

    linear: Linear

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.linear(x, bias)


class QuantizedLayers:
    """The linear layers of a model, which compute with quantized weights inside `used()`. One object for an engine.

    model: vLLM's; its layers must keep their weights (on the CPU by kept_weights in das/engine/patches/weights.py).
    Layers that are no plain linear layers, such as experts, stay as they are.
    weights: one of FORMATS.
    """

    def __init__(self, model: torch.nn.Module, weights: str):
        from vllm.model_executor.layers.linear import LinearBase

        self.weights = weights
        self.version: int | None = None  # version of the policy's weights that were quantized last
        self._make = linear_maker(weights)
        self._layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, LinearBase)]
        self._drafting: list[_Method] = []

    def make(self, version: int) -> None:
        """Quantize the policy's weights as they are now. Raises NotInstalled if no kernel can multiply them."""
        self.forget()  # first, so that old and new quantized weights are not in memory together
        for layer in self._layers:
            self._drafting.append(_Method(self._make(layer.weight.data)))
        self.version = version

    def forget(self) -> None:
        """Free the memory of the quantized weights."""
        self._drafting.clear()
        self.version = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside the `with` block, the model computes with the quantized weights."""
        own = [layer.quant_method for layer in self._layers]
        try:
            for layer, method in zip(self._layers, self._drafting, strict=True):
                layer.quant_method = method
            yield
        finally:
            for layer, method in zip(self._layers, own, strict=True):
                layer.quant_method = method
