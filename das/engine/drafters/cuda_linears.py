"""Linear layers of self-drafts on GPUs with CUDA, computed by the kernels that vLLM has for quantized checkpoints.

No GPU has run this yet. The packing of w4 is tested on the CPU, with vLLM's 4-bit kernel for CPUs behind the same
interface (tests/engine/test_quantized.py).
"""

import torch

from das.engine.drafters.quantized import Linear, to_4_bits, to_8_bits
from das.engine.versions import NotInstalled

GROUPS = (128, 64, 32)  # how many inputs share a scale: the first of these that divides a layer's inputs
IN_A_WORD = 8  # how many 4-bit values an int32 holds


def w8a8(weight: torch.Tensor) -> Linear:
    """Returns a layer with `weight` [outputs, inputs] in int8, computed by CUTLASS, up to compute capability 9.0."""
    from vllm import _custom_ops as ops

    rounded, scales = to_8_bits(weight)

    def linear(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows, row_scales, _ = ops.scaled_int8_quant(x.reshape(-1, x.shape[-1]).contiguous())
        out = ops.cutlass_scaled_mm(rows, rounded.t(), row_scales, scales[:, None], x.dtype, bias)
        return out.reshape(*x.shape[:-1], len(rounded))

    return linear


def w4(weight: torch.Tensor) -> Linear:
    """Returns a layer with `weight` [outputs, inputs] in 4 bits, computed by the best of vLLM's kernels (Machete,
    Marlin).

    Raises NotInstalled if no kernel takes this shape or this type of floats.
    """
    from vllm.model_executor.kernels.linear import choose_mp_linear_kernel
    from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import MPLinearLayerConfig
    from vllm.scalar_type import scalar_types

    num_outputs, num_inputs = weight.shape
    group = next((size for size in GROUPS if num_inputs % size == 0), GROUPS[-1])
    shape = (num_inputs, num_outputs)
    config = MPLinearLayerConfig(shape, shape, scalar_types.uint4, weight.dtype, group, zero_points=True)
    try:
        if num_inputs % GROUPS[-1] or num_outputs % IN_A_WORD:
            raise ValueError(f"they must be multiples of {GROUPS[-1]} and {IN_A_WORD}")
        kernel_type = choose_mp_linear_kernel(config)
    except ValueError as error:
        reason = str(error).splitlines()[-1].strip()
        raise NotInstalled(
            f"self_draft.weights=w4: vLLM has no 4-bit kernel for a layer of {num_inputs} inputs and {num_outputs} "
            f"outputs in {weight.dtype} ({reason}): choose w8a8, or the method das"
        ) from error
    kernel = kernel_type(config, "values", "scales", "zeros")
    layer = packed_4_bits(weight, group)
    kernel.process_weights_after_loading(layer)

    # Kernels differ in how they want a bias, so it is added here.
    def linear(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out = kernel.apply_weights(layer, x, None)
        return out if bias is None else out.add_(bias)

    return linear


def packed_4_bits(weight: torch.Tensor, group: int) -> torch.nn.Module:
    """Returns a bare layer that holds `weight` [outputs, inputs] as vLLM's 4-bit kernels expect it from a checkpoint:

    values  int32 [inputs / 8, outputs]
    scales  [groups, outputs], in the weight's type of floats
    zeros   int32 [outputs / 8, groups]
    """
    from vllm.model_executor.parameter import GroupQuantScaleParameter, PackedvLLMParameter

    values, scales, zeros = to_4_bits(weight, group)
    layer = torch.nn.Module()
    layer.register_parameter("bias", None)
    layer.values = PackedvLLMParameter(
        data=in_words(values.t()), input_dim=0, output_dim=1, packed_dim=0, packed_factor=IN_A_WORD, weight_loader=_none
    )
    layer.scales = GroupQuantScaleParameter(
        data=scales.t().to(weight.dtype).contiguous(), input_dim=0, output_dim=1, weight_loader=_none
    )
    layer.zeros = PackedvLLMParameter(
        data=in_words(zeros), input_dim=1, output_dim=0, packed_dim=0, packed_factor=IN_A_WORD, weight_loader=_none
    )
    return layer


def in_words(values: torch.Tensor) -> torch.Tensor:
    """Pack values 0 to 15, int32 [N, M], into int32 [N / 8, M]: eight rows in a word, the first in the lowest bits."""
    shifts = torch.arange(0, 4 * IN_A_WORD, 4, dtype=torch.int32, device=values.device)
    eight = values.unflatten(0, (-1, IN_A_WORD)) << shifts[:, None]
    return eight.sum(1, dtype=torch.int32)  # the numbers have no bits in common; the sign bit may become set


def _none(*args: object, **kwargs: object) -> None:
    """Does nothing, because nobody loads these parameters from a file."""
