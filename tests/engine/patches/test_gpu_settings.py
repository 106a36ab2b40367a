"""What das sets for GPUs, as far as a CPU can tell: graphs, profiles, tiles, norms and NCCL's variables."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.envs

from das.engine.environment import nccl_variables_kept, set_environment
from das.engine.methods import PROPOSER
from das.engine.patches import gpu
from das.engine.patches.gpu import choose_attention, keep_norms_invariant, split_residual_norm
from das.engine.patches.tuned_matmuls import LARGE, most_alike
from das.engine.runners.first.runner import FirstRunner
from das.verify import sampling_pieces

TABLE = """
import torch
from das.engine.install import install
install(batch_invariant=True)
from das.engine.patches.tuned_matmuls import LARGE
from vllm.model_executor.determinism import batch_invariant_configs as configs
configs._TUNED_MATMUL_CONFIGS_RESOLVED = True
configs._TUNED_MATMUL_CONFIGS_FOR_DEVICE = configs._BATCH_INVARIANT_MATMUL_TUNED_CONFIGS["hopper"]
default = {"BLOCK_SIZE_K": 0}
for outputs, inputs in LARGE:
    of_rows = [configs._get_matmul_config(rows, outputs, inputs, torch.bfloat16, default) for rows in (1, 9, 300, 9000)]
    assert len({config["BLOCK_SIZE_K"] for config in of_rows}) == 1  # the order of a row's sum is the same in each pass
    assert min(config["BLOCK_SIZE_M"] for config in of_rows) >= 64  # one family of instructions on Hopper
for table in configs._BATCH_INVARIANT_MATMUL_TUNED_CONFIGS.values():
    assert all(table[shape].m_buckets for shape in LARGE)
"""


def runner(drafter: str | None, num_spec_tokens: int = 32) -> Any:
    """A model runner as FirstRunner sees it."""
    speculative = None if drafter is None else SimpleNamespace(model=drafter)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_index=0), speculative_config=speculative, additional_config={}
    )
    model = SimpleNamespace(seed=0, logprobs_mode="raw_logits", dtype=torch.bfloat16, get_vocab_size=lambda: 1000)
    names = ("_sample", "_bookkeeping_sync", "profile_run", "propose_draft_token_ids", "_input_fits_in_drafter")
    return SimpleNamespace(
        vllm_config=config,
        model_config=model,
        uniform_decode_query_len=1 + num_spec_tokens,
        cudagraph_dispatcher=SimpleNamespace(uniform_decode_query_len=1 + num_spec_tokens),
        num_spec_tokens=num_spec_tokens,
        max_num_tokens=8192,
        max_num_reqs=64,
        device=torch.device("cpu"),
        **dict.fromkeys(names, lambda *args: None),
    )


@pytest.mark.parametrize(("drafter", "length"), [(PROPOSER, 1), ("ngram", 33), (None, 33)])
def test_graphs_are_captured_for_passes_without_drafts(drafter: str | None, length: int) -> None:
    """vLLM's own drafters draft as many tokens for all, so theirs stay as they are."""
    hooked = runner(drafter)
    FirstRunner(hooked)
    assert hooked.uniform_decode_query_len == hooked.cudagraph_dispatcher.uniform_decode_query_len == length


def test_the_profile_counts_the_rows_of_drafts_and_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    hooked = runner(PROPOSER)
    FirstRunner(hooked)
    monkeypatch.setattr(torch, "empty", lambda size, **kwargs: taken.append(size))
    hooked.profile_run()
    rows = 64 * 33
    assert taken == [rows * 1000 * 2 + rows * 1000 * sampling_pieces.SORTED_CELL_BYTES]
    assert sampling_pieces.profiled_bytes(8192, 152064, torch.bfloat16) == 8192 * 152064 * 2 + 2**30


def test_the_weights_of_self_drafts_are_there_when_memory_is_profiled() -> None:
    done: list[Any] = []
    hooked = runner(PROPOSER)
    hooked.profile_run = lambda *args: done.append("profile")
    FirstRunner(hooked).quantized = SimpleNamespace(make=done.append)  # type: ignore[assignment]
    hooked.profile_run()
    assert done == [0, "profile"]


def test_large_shapes_borrow_the_tiles_of_the_most_alike_one() -> None:
    tuned = ((12288, 2048), (2048, 6144), (4096, 2048), (151936, 2048), (2048, 2048))
    lent = {shape: most_alike(shape, tuned) for shape in LARGE}
    assert lent[37888, 3584] == lent[24576, 4096] == (12288, 2048)  # gate and up
    assert lent[3584, 18944] == lent[4096, 12288] == (2048, 6144)  # down
    assert lent[152064, 3584] == lent[151936, 4096] == (151936, 2048)  # lm_head


def test_every_tile_of_a_shape_has_the_same_inner_block() -> None:
    pytest.importorskip("vllm.model_executor.determinism.batch_invariant_configs")
    subprocess.run([sys.executable, "-c", TABLE], check=True, capture_output=True)


def test_norms_are_vllms_own_in_invariant_engines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def custom_ops(invariant: str, asked: list[str]) -> list[str]:
        # vLLM remembers its variables once an engine was built in this process.
        monkeypatch.setitem(vars(vllm.envs), "VLLM_BATCH_INVARIANT", invariant == "1")
        config = SimpleNamespace(compilation_config=SimpleNamespace(custom_ops=asked))
        keep_norms_invariant(config)
        return config.compilation_config.custom_ops

    assert custom_ops("0", []) == []
    assert custom_ops("1", ["+silu_and_mul"]) == ["+silu_and_mul", "+rms_norm"]
    assert custom_ops("1", ["-rms_norm"]) == ["-rms_norm"]  # the user's word


def norm_module() -> Any:
    """vLLM 0.26's module of norms: the norm after a residual add gives a row other bits from 256 rows on."""

    def norm(input: Any, weight: Any, eps: float = 1e-6, residual: Any = None) -> Any:
        scale = torch.rsqrt(input.float().pow(2).mean(-1, keepdim=True) + eps)
        if residual is None:
            return (input.float() * scale).to(input.dtype)
        total = input + residual
        return norm(total, weight, eps) * (1.0 if len(input) < 256 else 1.01), total

    return SimpleNamespace(rms_norm_batch_invariant=norm)


def test_a_norm_after_a_residual_add_does_not_depend_on_the_rows() -> None:
    layernorm = norm_module()
    split_residual_norm(layernorm)
    split = layernorm.rms_norm_batch_invariant
    split_residual_norm(layernorm)
    assert layernorm.rms_norm_batch_invariant is split
    rows, residual = torch.randn(2, 300, 64, dtype=torch.bfloat16)
    many, few = split(rows, None, residual=residual), split(rows[:3], None, residual=residual[:3])
    assert all(torch.equal(m[:3], f) for m, f in zip(many, few, strict=True))
    assert torch.equal(many[1], rows + residual)
    assert torch.equal(split(rows, None), norm_module().rms_norm_batch_invariant(rows, None))


@pytest.mark.parametrize(("version", "replaced"), [("0.25.1", True), ("0.26.0", True), ("0.27.1", False)])
def test_the_norm_is_replaced_where_it_depends_on_the_rows(
    version: str, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setitem(vars(vllm.envs), "VLLM_BATCH_INVARIANT", True)
    monkeypatch.setattr(gpu, "installed", lambda *names: version)
    monkeypatch.setattr(gpu, "split_residual_norm", done.append)
    keep_norms_invariant(SimpleNamespace(compilation_config=SimpleNamespace(custom_ops=[])))
    assert bool(done) == replaced


@pytest.mark.parametrize(
    ("head", "invariant", "asked", "chosen"),
    [(64, True, None, "TRITON_ATTN"), (128, True, None, None), (64, False, None, None), (64, True, "mine", "mine")],
)
def test_small_heads_get_attention_that_is_invariant(
    head: int, invariant: bool, asked: str | None, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(vllm.envs), "VLLM_BATCH_INVARIANT", invariant)
    attention = SimpleNamespace(backend=asked)
    model = SimpleNamespace(get_head_size=lambda: head)
    choose_attention(SimpleNamespace(attention_config=attention, model_config=model))
    assert getattr(attention.backend, "name", attention.backend) == chosen


def test_a_trainer_gets_its_batched_product_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the worker of an engine in its process has a device."""
    from das.engine import worker

    original = torch.bmm
    monkeypatch.setattr(torch, "bmm", original)  # whatever happens, later tests have it

    def init_device(own: Any) -> None:
        torch.bmm = lambda *args: args[0].detach()  # as vLLM 0.26 leaves it: without a gradient
        own.model_runner = None

    monkeypatch.setattr(worker.PlatformWorker, "init_device", init_device)
    monkeypatch.setattr(worker, "add_das", lambda runner: SimpleNamespace(coupled=False))
    built = object.__new__(worker.DasWorker)
    parallel = SimpleNamespace(world_size=1)
    built.vllm_config = SimpleNamespace(
        speculative_config=None, use_v2_model_runner=False, parallel_config=parallel, additional_config={}
    )
    built.init_device()
    assert torch.bmm is original


def test_float32_products_of_triton_are_ieee_beside_invariant_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    set_environment()
    assert "TRITON_F32_DEFAULT" not in os.environ
    set_environment(batch_invariant=True)
    assert os.environ["TRITON_F32_DEFAULT"] == "ieee"


def test_nccl_gets_its_variables_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "ring")
    monkeypatch.delenv("NCCL_MAX_NCHANNELS", raising=False)
    with nccl_variables_kept():
        os.environ.update(NCCL_ALGO="tree", NCCL_MAX_NCHANNELS="1", OTHER_THAN_NCCL="1")
    assert os.environ["NCCL_ALGO"] == "ring"
    assert "NCCL_MAX_NCHANNELS" not in os.environ
    assert os.environ.pop("OTHER_THAN_NCCL") == "1"
