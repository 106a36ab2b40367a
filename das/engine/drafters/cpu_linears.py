"""Linear layers of self-drafts on CPUs, computed by oneDNN.

In the format w4, weights are rounded to 4 bits, but the products are computed in full precision. vLLM's 4-bit kernel
for CPUs takes 16-bit floats only, and is 2 to 6 times as slow as the full layer (2 rows, 192 to 2,048 inputs,
2026-11-23). So on CPUs w4 shows how many drafts are accepted, but saves no time.
"""

from typing import Any

import torch

from das.engine.drafters.quantized import Linear, rounded_to_4_bits, to_8_bits

KERNELS = 64  # oneDNN keeps a layer's kernels for at most so many different numbers of rows


def w4(weight: torch.Tensor) -> Linear:
    """Returns a layer with `weight` [outputs, inputs] rounded to 4 bits."""
    from vllm import _custom_ops as ops

    handle = ops.create_onednn_mm(rounded_to_4_bits(weight).t(), KERNELS)
    return lambda x, bias: ops.onednn_mm(handle, x, bias)


def w8a8(weight: torch.Tensor) -> Linear:
    """Returns a layer with `weight` [outputs, inputs] in int8."""
    from vllm import _custom_ops as ops

    rounded, scales = to_8_bits(weight)
    handle = ops.create_onednn_scaled_mm(rounded.t(), scales, weight.dtype, True, False, KERNELS)
    num_outputs = len(weight)

    # oneDNN keeps bare pointers, so what they point to must live as long as the function.
    def linear(x: torch.Tensor, bias: torch.Tensor | None, keep: Any = (rounded, scales)) -> torch.Tensor:
        rows, row_scales, _ = ops.onednn_scaled_int8_quant(x.reshape(-1, x.shape[-1]), None, None, True)
        out = torch.empty(len(rows), num_outputs, dtype=x.dtype)
        ops.onednn_scaled_mm(handle, rows, out, row_scales, None, None, bias)
        return out.reshape(*x.shape[:-1], num_outputs)

    return linear
