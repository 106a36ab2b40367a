"""The policy's linear layers in fewer bits: the weights that a self-draft computes with (CPU).

w8a8  int8 weights, one scale for each output; activations are rounded to int8 row by row. oneDNN multiplies them.
w4    weights rounded to 4 bits, asymmetric, in groups of 128 inputs, as EfficientRollout rounds them (arXiv 2606.18967,
      section 3). Computed in full precision on the CPU, which has no kernel for it: it accepts as many drafts as W4
      does, and saves no time.

Embeddings, norms and the head that makes logits stay as they are, as in that paper.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from das.engine.cpu_invariance import Linear

GROUP = 128  # inputs that share a scale and a zero point in w4
KERNELS = 64  # numbers of rows for which oneDNN keeps a layer's kernel


def to_8_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [outputs, inputs] and the scales [outputs] that give `weight` back, nearly."""
    scales = weight.float().abs().amax(1).clamp_min_(1e-12) / 127
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def rounded_to_8_bits(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [outputs, inputs] as w8a8 sees it."""
    rounded, scales = to_8_bits(weight)
    return (rounded * scales[:, None]).to(weight.dtype)


def rounded_to_4_bits(weight: torch.Tensor, group: int = GROUP) -> torch.Tensor:
    """`weight` [outputs, inputs], rounded to the nearest of 16 values between the least and the greatest of a group.

    The last group of a row is shorter if `group` does not divide the inputs.
    """
    return torch.cat([_rounded(part) for part in weight.split(group, dim=1)], dim=1)


def _rounded(part: torch.Tensor) -> torch.Tensor:
    low, high = part.amin(1, keepdim=True), part.amax(1, keepdim=True)
    step = (high - low).clamp_min(1e-8) / 15
    return ((part - low) / step).round_().clamp_(0, 15) * step + low


def _w4(weight: torch.Tensor) -> Linear:
    from vllm import _custom_ops as ops

    handle = ops.create_onednn_mm(rounded_to_4_bits(weight).t(), KERNELS)
    return lambda x, weight, bias: ops.onednn_mm(handle, x, bias)


def _w8a8(weight: torch.Tensor) -> Linear:
    from vllm import _custom_ops as ops

    rounded, scales = to_8_bits(weight)
    handle = ops.create_onednn_scaled_mm(rounded.t(), scales, weight.dtype, True, False, KERNELS)
    num_outputs = len(weight)

    # oneDNN keeps bare pointers, so what they point to must live as long as the function.
    def linear(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, keep: Any = (rounded, scales)
    ) -> torch.Tensor:
        rows, row_scales, _ = ops.onednn_scaled_int8_quant(x.reshape(-1, x.shape[-1]), None, None, True)
        out = torch.empty(len(rows), num_outputs, dtype=x.dtype)
        ops.onednn_scaled_mm(handle, rows, out, row_scales, None, None, bias)
        return out.reshape(*x.shape[:-1], num_outputs)

    return linear


FORMATS: dict[str, Callable[[torch.Tensor], Linear]] = {"w8a8": _w8a8, "w4": _w4}


class QuantizedLayers:
    """The linear layers of a model, in another format while `used()`.

    model: vLLM's, on the CPU, whose layers keep their weights (kept_weights in das/engine/patches/weights.py).
    Layers that are no plain linear layers, such as experts, stay as they are.
    """

    def __init__(self, model: torch.nn.Module, weights: str):
        from vllm.model_executor.layers.linear import LinearBase

        self._make = FORMATS[weights]
        self._layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, LinearBase)]
        self._drafting: list[Linear] = []

    def make(self) -> None:
        """Quantize the weights as they are now."""
        self._drafting.clear()  # first, so that old and new ones are not in memory together
        for layer in self._layers:
            self._drafting.append(self._make(layer.weight.data))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside, the model computes with the quantized weights."""
        own = [layer.cpu_linear for layer in self._layers]
        try:
            for layer, linear in zip(self._layers, self._drafting, strict=True):
                layer.cpu_linear = linear
            yield
        finally:
            for layer, linear in zip(self._layers, own, strict=True):
                layer.cpu_linear = linear
