"""Digests of weights pass through the host in pieces: the same digest, and little memory."""

import numpy as np
import pytest
import torch

from experiments import digests
from experiments.digests import digest, tensors_digest, weights_digest


@pytest.mark.parametrize("shape", [(), (7,), (5, 30), (3, 40, 6), (2, 1, 100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_pieces_give_the_digest_of_the_whole(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)]
    if len(shape) == 2:
        tensors.append(torch.randn(shape[::-1]).to(dtype).t())  # not in C order
    expected = digest(*(tensor.float().numpy() for tensor in tensors))
    for piece in (1, 20, 64, 10**6):
        monkeypatch.setattr(digests, "PIECE", piece)
        assert tensors_digest(tensors) == expected
        assert all(part.numel() <= piece for tensor in tensors for part in digests._pieces(tensor))


def test_parameters_come_in_the_order_of_their_names() -> None:
    model = torch.nn.ModuleDict({"b": torch.nn.Linear(2, 2), "a": torch.nn.Linear(2, 2)})
    names = ("a.bias", "a.weight", "b.bias", "b.weight")
    arrays = [model.get_parameter(name).detach().numpy().astype(np.float32) for name in names]
    assert weights_digest(model) == digest(*arrays)
