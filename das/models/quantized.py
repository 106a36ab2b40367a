"""The policy's linear layers in fewer bits, in one of two formats, and the kernels that multiply such weights:

w8a8  int8 weights, one scale for each output; activations are rounded to int8 row by row.
w4    weights rounded to 4 bits, asymmetric, in groups of 128 inputs (64 or 32 where 128 does not divide them), as
      EfficientRollout rounds them (arXiv 2606.18967, section 3); activations are not rounded to integers.

Embeddings, norms and the head that makes logits stay unchanged, as in that paper.

On CPUs oneDNN multiplies w8a8, by vLLM's kernel, and torch's own kernel multiplies w4, in bfloat16, because in float32
it is slow (times: docs/log.md#self-drafts-on-library-kernels-2026-11-27).

On GPUs with CUDA there is w4 alone, by the kernels that vLLM has for quantized checkpoints. No GPU has run this yet.
Its packing is tested on the CPU, with vLLM's 4-bit kernel for CPUs behind the same interface
(tests/models/test_quantized.py).
"""

from collections.abc import Callable
from typing import Any

import torch

from das.general.errors import NotInstalled
from das.general.native import cpu_model

FORMATS = ("w8a8", "w4")
LARGEST = 15  # the largest value of 4 bits
# Processors without one of these instructions add two products in 16 bits, where weights of 8 bits overflow, and a
# layer of up to 8 rows takes 2 to 7 times as long in 8 bits as in float32.
VNNI = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}
KERNELS = 64  # oneDNN keeps a layer's kernels for at most so many different numbers of rows
GROUPS = (128, 64, 32)  # inputs that share a scale and a zero point in w4: the first that divides a layer's inputs
IN_A_WORD = 8  # how many 4-bit values an int32 holds
OUTPUTS = 16  # torch's 4-bit kernel takes multiples of so many outputs

# (x [..., inputs], bias [outputs] or None) -> [..., outputs]
Linear = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


def to_8_bits(weight: torch.Tensor, largest: int = 127) -> tuple[torch.Tensor, torch.Tensor]:
    """Round `weight` to int8 [outputs, inputs], at most `largest`. Also returns scales, [outputs]: int8 * scale is
    nearly `weight`."""
    scales = weight.float().abs().amax(1).clamp_min_(1e-12) / largest
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def to_4_bits(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round each weight to the nearest of 16 values. weight: [outputs, inputs]; `group` must divide the inputs.

    Returns the values 0 to 15, int32 [outputs, inputs], and for each group of inputs the scale and the value that
    stands for zero, both [outputs, groups]. (value - zero) * scale is nearly the weight.
    """
    groups = weight.float().unflatten(1, (-1, group))
    low, high = groups.amin(2).clamp_max_(0), groups.amax(2).clamp_min_(0)
    scales = (high - low).clamp_min_(1e-8) / LARGEST
    zeros = (-low / scales).round_()
    values = (groups / scales[..., None]).round_().add_(zeros[..., None]).clamp_(0, LARGEST)
    return values.flatten(1).int(), scales, zeros.int()


def group_of(num_inputs: int) -> int:
    """Returns how many inputs share a scale in a kernel; 32 also if 32 does not divide the inputs, which no kernel
    takes."""
    return next((size for size in GROUPS if num_inputs % size == 0), GROUPS[-1])


def linear_maker(weights: str) -> Callable[[torch.Tensor], Linear]:
    """Returns the function that makes a layer from a weight [outputs, inputs] on this device. weights: one of
    FORMATS."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return {"w8a8": cpu_w8a8, "w4": cpu_w4}[weights]
    return gpu_w4  # vLLM's int8 kernels for GPUs are refused: das.models.self_draft.require_self_draft


def has_8_bit_products() -> bool:
    """Returns whether this processor multiplies vectors of 8 bits in one instruction."""
    return bool(VNNI & set(cpu_model().split()))


def require_shape(weights: str, weight: torch.Tensor) -> None:
    """Raise NotInstalled with a one-line message if this CPU's kernels do not take a layer with `weight`."""
    num_outputs, num_inputs = weight.shape
    if weights == "w4" and (num_outputs % OUTPUTS or num_inputs % group_of(num_inputs)):
        raise NotInstalled(
            f"self_draft=w4: torch's 4-bit kernel takes multiples of {GROUPS[-1]} inputs and {OUTPUTS} "
            f"outputs, and a layer has {num_inputs} and {num_outputs}: choose w8a8, or the method das"
        )


def cpu_w4(weight: torch.Tensor) -> Linear:
    """Returns a layer with `weight` [outputs, inputs] in 4 bits."""
    num_outputs, num_inputs = weight.shape
    group = group_of(num_inputs)
    values, scales, zeros = to_4_bits(weight, group)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1)
    # The kernel computes (value - 8) * scale + shift.
    steps = torch.stack([scales, (8 - zeros) * scales], dim=2).transpose(0, 1).bfloat16().contiguous()

    def linear(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows = x.reshape(-1, num_inputs).bfloat16().contiguous()
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed, group, steps)
        out = out.to(x.dtype).reshape(*x.shape[:-1], num_outputs)
        return out if bias is None else out.add_(bias)

    return linear


def cpu_w8a8(weight: torch.Tensor) -> Linear:
    """Returns a layer with `weight` [outputs, inputs] in int8."""
    from vllm import _custom_ops as ops

    largest = 127 if has_8_bit_products() else 63
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


def gpu_w4(weight: torch.Tensor) -> Linear:
    """Returns a layer with `weight` [outputs, inputs] in 4 bits, computed by the best of vLLM's kernels (Machete,
    Marlin).

    Raises NotInstalled if no kernel takes this shape or this type of floats.
    """
    from vllm.model_executor.kernels.linear import choose_mp_linear_kernel
    from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import MPLinearLayerConfig
    from vllm.scalar_type import scalar_types

    num_outputs, num_inputs = weight.shape
    group = group_of(num_inputs)
    shape = (num_inputs, num_outputs)
    config = MPLinearLayerConfig(shape, shape, scalar_types.uint4, weight.dtype, group, zero_points=True)
    try:
        if num_inputs % GROUPS[-1] or num_outputs % IN_A_WORD:
            raise ValueError(f"they must be multiples of {GROUPS[-1]} and {IN_A_WORD}")
        kernel_type = choose_mp_linear_kernel(config)
    except ValueError as error:
        reason = str(error).splitlines()[-1].strip()
        raise NotInstalled(
            f"self_draft=w4: vLLM has no 4-bit kernel for a layer of {num_inputs} inputs and {num_outputs} "
            f"outputs in {weight.dtype} ({reason}): choose the method das"
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
