"""Linear layers of self-drafts on CPUs.

In the format w8a8 oneDNN multiplies. In the format w4 weights are rounded to 4 bits, but the products are computed in
full precision. vLLM's 4-bit kernel for CPUs takes 16-bit floats only, and is 2 to 6 times as slow as the full layer
(2 rows, 192 to 2,048 inputs, 2026-11-23). So on CPUs w4 shows how many drafts are accepted, but saves no time.
"""

from typing import Any

import torch

from das.engine.drafters.quantized import Linear, rounded_to_4_bits, to_8_bits
from das.native import cpu_model

# Processors without one of these instructions add two products in 16 bits, where weights of 8 bits overflow.
VNNI = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}
KERNELS = 64  # oneDNN keeps a layer's kernels for at most so many different numbers of rows


def w4(weight: torch.Tensor) -> Linear:
    """Returns a layer with `weight` [outputs, inputs] rounded to 4 bits."""
    rounded = rounded_to_4_bits(weight)
    return lambda x, bias: torch.nn.functional.linear(x, rounded, bias)  # oneDNN has no bfloat16 without AVX-512


def w8a8(weight: torch.Tensor) -> Linear:
    """Returns a layer with `weight` [outputs, inputs] in int8."""
    from vllm import _custom_ops as ops

    largest = 127 if VNNI & set(cpu_model().split()) else 63
    rounded, scales = to_8_bits(weight, largest)
    handle = ops.create_onednn_scaled_mm(rounded.t(), scales, weight.dtype, True, False, KERNELS)
    num_outputs = len(weight)

    # oneDNN keeps bare pointers, so what they point to must live as long as the function.
    def linear(x: torch.Tensor, bias: torch.Tensor | None, keep: Any = (rounded, scales)) -> torch.Tensor:
        rows, row_scales, _ = ops.onednn_scaled_int8_quant(x.reshape(-1, x.shape[-1]), None, None, True)
        out = torch.empty(len(rows), num_outputs, dtype=x.dtype)
        ops.onednn_scaled_mm(handle, rows, out, row_scales, None, None, bias)
        return out.reshape(*x.shape[:-1], num_outputs)

    return linear
