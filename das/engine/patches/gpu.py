"""Patches for GPUs.

- compilation_config.custom_ops of an engine with batch-invariant kernels gets "+rms_norm".
- attention_config.backend of such an engine is vLLM's Triton attention if the heads are smaller than 128.
- compilation_config.cudagraph_capture_sizes of an engine that drafts ends at ROWS rows. vLLM's own list ends at 512.
"""

from typing import Any

import torch

from das.engine.patches.replace import put
from das.engine.settings import BITS

ROWS = 768  # of the largest pass that is one graph: 256 requests with two drafted tokens each
GRAPHED = 64  # requests that all draft the longest draft, in the graphs of attention that wants that
INVARIANT_HEAD = 128  # the head size for which FlashAttention 3 should be batch-invariant under vLLM's flag


def keeps_bits(exact: str | None, dtype: torch.dtype) -> bool:
    """Returns whether drafts change no token of an engine, on this device and with this process's kernels.

    exact: as the engine asks; None: bits where its kernels keep them. dtype: in which the engine computes. On a CPU a
    row's bits depend on the other rows of its pass in any type but float32. Raises ValueError with a one-line message
    if the engine asks for bits that its kernels do not give.
    """
    import vllm.envs
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    possible = dtype == torch.float32 if on_cpu else vllm.envs.VLLM_BATCH_INVARIANT
    if exact == BITS and not possible:
        cure = (
            f"float32 on a CPU, and this engine computes in {dtype}: load the policy in float32 or leave `exact` out"
            if on_cpu
            else 'vLLM\'s batch-invariant kernels: call das.install(exact="bits") before vLLM is imported, or set '
            "VLLM_BATCH_INVARIANT=1"
        )
        raise ValueError(f'exact="bits" needs {cure}')
    return possible if exact is None else exact == BITS


def graph_drafts(vllm_config: Any) -> None:
    """Let graphs reach passes of ROWS rows. Sizes that the user chose stay."""
    from vllm.platforms import current_platform

    compilation, requests = vllm_config.compilation_config, vllm_config.scheduler_config.max_num_seqs
    chosen = compilation.max_cudagraph_capture_size is not None or compilation.cudagraph_capture_sizes is not None
    if current_platform.is_cpu() or vllm_config.model_config.enforce_eager or chosen:
        return
    longest = 1 + vllm_config.speculative_config.num_speculative_tokens
    largest = min(requests * longest, ROWS)
    few = [1, 2, 4, *range(8, GRAPHED + 1, 8)]
    # As vLLM's own: passes of any drafts, and, for attention that wants it, those in which all draft the longest draft.
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16), largest, *(longest * each for each in few)}
    put(compilation, cudagraph_capture_sizes=sorted(size for size in sizes if size <= largest))


def rows_of_graphs(vllm_config: Any) -> int | None:
    """Returns the most rows of a pass that is one graph; None if passes are no graphs. A larger pass waits for the host
    to launch each kernel."""
    return vllm_config.compilation_config.max_cudagraph_capture_size or None


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


def choose_attention(vllm_config: Any) -> None:
    """Let an engine with batch-invariant kernels attend with vLLM's Triton kernel if its heads are smaller than 128:
    for these FlashAttention 3 is not batch-invariant under vLLM's flag. A backend that the user chose stays."""
    import vllm.envs
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    attention = vllm_config.attention_config
    small = vllm_config.model_config.get_head_size() < INVARIANT_HEAD
    if vllm.envs.VLLM_BATCH_INVARIANT and attention.backend is None and small:
        put(attention, backend=AttentionBackendEnum.TRITON_ATTN)
