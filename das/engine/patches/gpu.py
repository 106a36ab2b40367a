"""Patches for GPUs: batch-invariant kernels for larger models, memory for drafts, graphs for passes without drafts.

- vLLM's table of the tiles of batch-invariant matrix products, which all engines of the process share, gets more shapes
  if das.install() turns these kernels on. A token still has the same bits in every pass.
- compilation_config.custom_ops of an engine with batch-invariant kernels gets "+rms_norm".
- runner.profile_run: vLLM's memory profile counts one row of logits for each request, and vLLM's sampler. So the KV
  cache would take the memory that the rows of drafts need.
- runner.uniform_decode_query_len, cudagraph_dispatcher.uniform_decode_query_len: vLLM captures full graphs for passes
  in which every request has the longest draft. Drafts of das have any length.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from das.engine.patches.replace import patch
from das.engine.patches.tuned_matmuls import LARGE, most_alike

if TYPE_CHECKING:
    from das.engine.runners.protocol import Runner


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
                table[shape] = table[most_alike(shape, tuned)]


def keep_norms_invariant(vllm_config: Any) -> None:
    """Let an engine with batch-invariant kernels use vLLM's own kernel for its norms. A compiled model would use
    Inductor's kernel, whose sums may depend on the number of rows.
    """
    import vllm.envs

    custom_ops = vllm_config.compilation_config.custom_ops
    if vllm.envs.VLLM_BATCH_INVARIANT and not {"+rms_norm", "-rms_norm", "all"} & set(custom_ops):
        custom_ops.append("+rms_norm")


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
