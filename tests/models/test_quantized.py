"""Linear layers in fewer bits: rounding, packing, and the kernels of this machine."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from das.general.errors import NotInstalled
from das.models.quantized import (
    GROUPS,
    cpu_w4,
    cpu_w8a8,
    gpu_w4,
    in_words,
    require_shape,
    to_4_bits,
    to_8_bits,
)


def random(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 1000), st.sampled_from([(3, 64, 64), (5, 256, 128), (2, 96, 32)]), st.floats(-2, 2))
def test_4_bits_are_the_nearest_of_16_values(seed: int, shape: tuple[int, int, int], shift: float) -> None:
    rows, columns, group = shape
    weight = random(rows, columns, seed) + shift
    values, scales, zeros = to_4_bits(weight, group)
    assert values.min() >= 0
    assert values.max() <= 15
    choices = (torch.arange(16) - zeros[..., None]) * scales[..., None]  # [rows, groups, 16]
    grouped = weight.unflatten(1, (-1, group))
    nearest = (grouped[..., None] - choices[:, :, None]).abs().amin(-1)
    own = (grouped - choices.gather(2, values.unflatten(1, (-1, group)).long())).abs()
    torch.testing.assert_close(own, nearest, rtol=0, atol=1e-5)
    assert (nearest <= scales[..., None] * 1.01).all()  # the choices reach as far as the weights, up to rounded zeros


def rounded_to_4_bits(weight: torch.Tensor, group: int) -> torch.Tensor:
    values, scales, zeros = to_4_bits(weight, group)
    return ((values.unflatten(1, (-1, group)) - zeros[..., None]) * scales[..., None]).flatten(1)


def test_words_hold_eight_rows_each() -> None:
    values = torch.randint(0, 16, (24, 5), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    words = in_words(values)
    back = torch.stack([(words[row // 8] >> (4 * (row % 8))) & 15 for row in range(24)])
    assert torch.equal(back, values)


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's parameters ask for the rank, which only an engine has."""
    for name, value in (("rank", 0), ("world_size", 1)):
        monkeypatch.setattr(
            f"vllm.model_executor.parameter.get_tensor_model_parallel_{name}", lambda value=value: value
        )


@pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="vLLM's 4-bit kernel for CPUs needs AVX-512"
)
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 96), (192, 64), (96, 32)])
def test_packed_4_bits_multiply_as_the_rounded_weight(inputs: int, outputs: int) -> None:
    """vLLM's kernel for CPUs stands behind the same interface as those for GPUs."""
    weight, x = random(outputs, inputs).bfloat16(), random(3, inputs, 1).bfloat16()
    bias = random(1, outputs, 2)[0].bfloat16()
    group = next(size for size in GROUPS if inputs % size == 0)
    expected = x.float() @ rounded_to_4_bits(weight.float(), group).t() + bias.float()
    given_back = gpu_w4(weight)(x, bias).float()
    torch.testing.assert_close(given_back, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


def test_shape_without_a_kernel_is_refused_in_one_line() -> None:
    with pytest.raises(NotInstalled, match="no 4-bit kernel for a layer of 96 inputs and 40 outputs") as refused:
        gpu_w4(random(40, 96).bfloat16())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("outputs", "inputs", "group"), [(64, 256, 128), (64, 192, 64), (96, 96, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_4_bits_on_the_cpu_multiply_as_the_rounded_weight(
    outputs: int, inputs: int, group: int, dtype: torch.dtype
) -> None:
    weight, x = random(outputs, inputs).to(dtype), random(10, inputs, 1).reshape(2, 5, inputs).to(dtype)
    bias = random(1, outputs, 2)[0].to(dtype)
    expected = x.float() @ rounded_to_4_bits(weight.float(), group).t() + bias.float()
    given_back = cpu_w4(weight)(x, bias)
    assert given_back.dtype == dtype
    assert (given_back.float() - expected).abs().max() < 0.01 * expected.abs().max()  # products are of bfloat16


@pytest.mark.parametrize(("outputs", "inputs"), [(40, 192), (64, 40)])
def test_shape_without_a_kernel_on_the_cpu_is_refused_in_one_line(outputs: int, inputs: int) -> None:
    with pytest.raises(NotInstalled, match=f"a layer has {inputs} and {outputs}: choose w8a8") as refused:
        require_shape("w4", random(outputs, inputs))
    assert "\n" not in str(refused.value)


def test_8_bits_on_the_cpu_multiply_as_the_rounded_weight() -> None:
    weight, x, bias = random(64, 192), random(5, 192, 1), random(1, 64, 2)[0]
    rounded, scales = to_8_bits(weight)
    expected = x @ (rounded * scales[:, None]).t() + bias
    error = (cpu_w8a8(weight)(x, bias) - expected).abs().max()
    assert error < 0.02 * expected.abs().max()  # activations are rounded as well
