"""What das sets for GPUs, as far as a CPU can tell. Whole configurations: tests/nightly/test_cuda_configs.py."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.envs
from vllm.platforms import current_platform

import das
from das.engine.install import INVARIANT
from das.engine.patches.gpu import keeps_bits
from das.engine.runner.runner import Runner
from das.trl.engines.in_process import nccl_variables_kept
from das.verify import top_p


def runner() -> Any:
    """A model runner as Runner sees it. It notes in `torch.empty`'s list when vLLM profiles."""
    config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=9), speculative_config=None)
    return SimpleNamespace(
        vllm_config=config,
        model_config=SimpleNamespace(dtype=torch.bfloat16),
        scheduler_config=SimpleNamespace(async_scheduling=False),
        speculator=None,
        output_copy_stream=None,
        num_speculative_steps=32,
        vocab_size=1000,
        max_num_tokens=8192,
        max_num_reqs=64,
        device=torch.device("cpu"),
        profile_run=lambda: torch.empty("profile"),  # type: ignore[call-overload]
        **dict.fromkeys(("sample", "load_model", "add_requests", "finish_requests"), lambda *args: None),
    )


def test_the_profile_counts_the_rows_of_drafts_and_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    hooked = runner()
    Runner(hooked).quantized = SimpleNamespace(make=lambda: taken.append("weights"))  # type: ignore[assignment]
    monkeypatch.setattr(torch, "empty", lambda size, **kwargs: taken.append(size))
    hooked.profile_run()
    rows, vocab = 64 * 33, 1000
    size = rows * vocab * (4 + 2 + top_p.SORTED_CELL_BYTES)
    assert taken == ["weights", "profile", size]  # the weights of self-drafts are there before
    assert top_p.profiled_bytes(8192, 152064, torch.bfloat16) == 8192 * 152064 * 2 + 2**30


@pytest.mark.parametrize(
    ("cpu", "flag", "dtype", "asked", "kept"),
    [
        (True, False, torch.float32, None, True), (True, False, torch.float32, "distribution", False),
        (True, False, torch.bfloat16, None, False), (True, True, torch.float16, None, False),
        (False, False, torch.float32, None, False), (False, True, torch.bfloat16, None, True),
        (False, True, torch.bfloat16, "bits", True), (False, True, torch.bfloat16, "distribution", False),
    ],
)  # fmt: skip
def test_bits_are_kept_where_they_cost_nothing_or_are_asked_for(
    cpu: bool, flag: bool, dtype: torch.dtype, asked: str | None, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(vllm.envs), "VLLM_BATCH_INVARIANT", flag)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: cpu)
    assert keeps_bits(asked, dtype) == kept


def test_bits_without_the_kernels_that_keep_them_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(vllm.envs), "VLLM_BATCH_INVARIANT", False)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    with pytest.raises(ValueError, match=r'das.install\(exact="bits"\)'):
        keeps_bits("bits", torch.float32)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: True)
    with pytest.raises(ValueError, match=r"float32 on a CPU, and this engine computes in torch.bfloat16"):
        keeps_bits("bits", torch.bfloat16)


def test_invariant_kernels_are_on_until_das_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's float32 products are IEEE's beside them. What the user has set stays."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in INVARIANT:
        monkeypatch.delenv(name, raising=False)

    def those_set() -> list[str]:
        return [name for name in INVARIANT if name in os.environ]

    for exact in (None, "distribution"):
        das.install(exact)
        assert not those_set()
    das.install("bits")
    assert os.environ.items() >= INVARIANT.items()
    das.speculate("off")
    assert not those_set()
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    das.install("bits")
    das.speculate("off")
    assert those_set() == ["VLLM_BATCH_INVARIANT"]


def test_nccl_gets_its_variables_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "ring")
    monkeypatch.delenv("NCCL_MAX_NCHANNELS", raising=False)
    with nccl_variables_kept():
        os.environ.update(NCCL_ALGO="tree", NCCL_MAX_NCHANNELS="1", OTHER_THAN_NCCL="1")
    assert os.environ["NCCL_ALGO"] == "ring"
    assert "NCCL_MAX_NCHANNELS" not in os.environ
    assert os.environ.pop("OTHER_THAN_NCCL") == "1"
