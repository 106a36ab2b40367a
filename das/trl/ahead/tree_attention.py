"""Attention over the rows that AsyncGRPOTrainer packs, for training without CUDA. TRL has a kernel for GPUs only.

A row holds samples with a common beginning, as a tree of segments. The segments are laid end to end. Each attends to
itself and to the segments on the way from the beginning of its samples.
"""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.flash_attention import get_target_dtype
from transformers.masking_utils import AttentionMaskInterface

from das.errors import EngineError

NAME = "das_tree_sdpa"  # the name under which transformers finds this attention


def use_tree_sdpa(model: Any) -> None:
    """Let a policy of AsyncGRPOTrainer use torch's own attention. Other models stay as they are."""
    AttentionInterface.register(NAME, tree_sdpa)
    AttentionMaskInterface.register(NAME, lambda **kwargs: None)  # the segments are the mask
    model.set_attn_implementation(NAME)


def tree_sdpa(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    tree_kv_index: torch.Tensor,
    tree_cu_seqlens_q: torch.Tensor,
    tree_cu_seqlens_k: torch.Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute `trl.experimental.async_grpo.packing.tree_attention` with torch's attention, segment by segment.

    query [1, H, N, D], key and value [1, H', N, D] belong to a row of N tokens. tree_kv_index [K]: the places in the
    row that the segments see, one segment after the other. tree_cu_seqlens_q, tree_cu_seqlens_k [S + 1]: where each
    segment begins in the row, and in tree_kv_index. The keys that a segment sees end with the segment itself. So its
    last query sees all of them, and each earlier query sees one key less than the next one. Returns [1, N, H, D].
    Raises EngineError for a softcap, because torch's attention has none.
    """
    if softcap:
        raise EngineError("this policy caps its attention scores, which torch's attention cannot: train it on a GPU")
    dtype = get_target_dtype(query, module) or query.dtype
    query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    attended = []
    starts, seen_starts = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    for segment in range(len(starts) - 1):
        own = query[:, :, starts[segment] : starts[segment + 1]]
        seen = tree_kv_index[seen_starts[segment] : seen_starts[segment + 1]]
        num_queries, num_keys = own.shape[2], len(seen)
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril(num_keys - num_queries)
        if sliding_window:
            mask = mask.triu(num_keys - num_queries - sliding_window + 1)
        keys, values = key[:, :, seen], value[:, :, seen]
        attended.append(scaled_dot_product_attention(own, keys, values, attn_mask=mask, scale=scaling, enable_gqa=True))
    return torch.cat(attended, dim=2).transpose(1, 2), None


def one_sample(tokens: int, device: torch.device) -> dict[str, Any]:
    """Returns the arguments that AsyncGRPOTrainer's policy needs for a row with a single sample of `tokens` tokens."""
    bounds = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    return {
        "tree_kv_index": torch.arange(tokens, device=device),
        "tree_cu_seqlens_q": bounds,
        "tree_cu_seqlens_k": bounds,
        "tree_max_seqlen_q": tokens,
        "tree_max_seqlen_k": tokens,
    }
