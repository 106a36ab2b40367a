"""Muon on CPUs with and without AVX-512."""

import pytest
import torch

from experiments.heads.training import Muon


def one_step(optimizer: type[torch.optim.Optimizer]) -> torch.Tensor:
    """Returns a matrix after one step with learning rate 1 from zero."""
    parameter = torch.zeros(24, 40, requires_grad=True)
    parameter.grad = torch.randn(24, 40, generator=torch.Generator().manual_seed(0))
    optimizer([parameter], lr=1.0, weight_decay=0.0).step()  # type: ignore[call-arg]
    return parameter.detach()


@pytest.mark.parametrize("capability", ["AVX512", "AVX2", "DEFAULT"])
def test_without_avx_512_the_update_is_torchs_in_float32(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    ours, torchs = one_step(Muon), one_step(torch.optim.Muon)
    torch.testing.assert_close(ours, torchs, rtol=0, atol=0.02)
    in_bfloat16 = torch.equal(ours, ours.bfloat16().float())
    assert in_bfloat16 == (capability == "AVX512")
    if in_bfloat16:
        assert torch.equal(ours, torchs)
