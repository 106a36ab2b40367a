"""Round the weights of the policy's linear layers to fewer bits, in one of two formats:

w8a8  int8 weights, one scale for each output; activations are rounded to int8 row by row.
w4    weights rounded to 4 bits, asymmetric, in groups of 128 inputs, as EfficientRollout rounds them (arXiv 2606.18967,
      section 3); activations are not rounded.

cpu_linears.py and cuda_linears.py have the kernels that multiply such weights. Embeddings, norms and the head that
makes logits stay unchanged, as in that paper.
"""

from collections.abc import Callable

import torch

FORMATS = ("w8a8", "w4")
GROUP = 128  # inputs that share a scale and a zero point in w4
LARGEST = 15  # the largest value of 4 bits

# (x [..., inputs], bias [outputs] or None) -> [..., outputs]
Linear = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


def to_8_bits(weight: torch.Tensor, largest: int = 127) -> tuple[torch.Tensor, torch.Tensor]:
    """Round `weight` to int8 [outputs, inputs], at most `largest`. Also returns scales, [outputs]: int8 * scale is
    nearly `weight`."""
    scales = weight.float().abs().amax(1).clamp_min_(1e-12) / largest
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def rounded_to_8_bits(weight: torch.Tensor) -> torch.Tensor:
    """Returns `weight` [outputs, inputs] with the rounding of w8a8, in its former type."""
    rounded, scales = to_8_bits(weight)
    return (rounded * scales[:, None]).to(weight.dtype)


def to_4_bits(weight: torch.Tensor, group: int = GROUP) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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


def rounded_to_4_bits(weight: torch.Tensor, group: int = GROUP) -> torch.Tensor:
    """Returns `weight` [outputs, inputs] with the rounding of w4, in its former type.

    The last group of a row is shorter if `group` does not divide the inputs.
    """
    return torch.cat([_rounded(part, min(group, part.shape[1])) for part in _whole_groups(weight, group)], dim=1)


def _whole_groups(weight: torch.Tensor, group: int) -> list[torch.Tensor]:
    whole = weight.shape[1] // group * group
    return [part for part in (weight[:, :whole], weight[:, whole:]) if part.shape[1]]


def _rounded(weight: torch.Tensor, group: int) -> torch.Tensor:
    values, scales, zeros = to_4_bits(weight, group)
    groups = values.unflatten(1, (-1, group)) - zeros[..., None]
    return (groups * scales[..., None]).flatten(1).to(weight.dtype)
