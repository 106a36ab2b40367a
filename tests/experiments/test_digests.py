"""Digests of weights pass through the host in pieces: the same digest, and little memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from experiments import digests
from experiments.digests import digest, tensors_digest, weights_digest

SCRIPT = """
import resource, torch
from experiments.digests import weights_digest
model = torch.nn.Linear(20_000, 30_000, dtype=torch.bfloat16)  # 1.2 GB; as float32 2.4 GB
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weights_digest(model)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)  # MiB
"""


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


def test_parameters_come_in_the_order_of_their_names() -> None:
    model = torch.nn.ModuleDict({"b": torch.nn.Linear(2, 2), "a": torch.nn.Linear(2, 2)})
    names = ("a.bias", "a.weight", "b.bias", "b.weight")
    arrays = [model.get_parameter(name).detach().numpy().astype(np.float32) for name in names]
    assert weights_digest(model) == digest(*arrays)


@pytest.mark.slow
def test_a_large_model_takes_less_than_a_gigabyte_more() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 512
