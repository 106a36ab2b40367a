"""Scratch blocks: KV blocks that vLLM's scheduler does not know of. Branches of drafts use them, and so do self-drafts
(drafts by the policy's own quantized weights)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from das.errors import NotInstalled


def refusal(what: str) -> NotInstalled:
    """Returns the error for an engine whose KV cache or attention das cannot handle. what: names the missing
    requirement."""
    return NotInstalled(f"branching drafts and self-drafts need {what}: set branch_blocks=0, or another method")


def with_scratch_blocks(config: Any, num_blocks: int) -> Any:
    """Returns vLLM's KVCacheConfig with this many more blocks. Raises NotInstalled if das cannot enlarge such a
    cache."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    if len(config.kv_cache_tensors) != 1 or len(specs) != 1 or type(specs[0]) is not FullAttentionSpec:
        raise refusal("a model that has full attention, with heads of one size, in every layer")
    tensor, total = config.kv_cache_tensors[0], config.num_blocks + num_blocks
    layer_stride = tensor.layer_stride
    if layer_stride == config.num_blocks * tensor.block_stride:  # each layer's blocks lie together
        layer_stride = total * tensor.block_stride
    grown = replace(tensor, size=tensor.size // config.num_blocks * total, layer_stride=layer_stride)
    return replace(config, num_blocks=total, kv_cache_tensors=[grown])


def check_block_size(runner: Any) -> int:
    """Returns the number of tokens in a KV block. Raises NotInstalled if attention's blocks differ from the
    scheduler's."""
    block_size: int = runner.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
    if runner.kernel_block_sizes != [block_size]:
        raise refusal(f"an attention kernel with blocks of {block_size} tokens, as vLLM's scheduler has them")
    return block_size


def copy_blocks(runner: Any, copies: Sequence[tuple[int, int]]) -> None:
    """Copy KV blocks in every layer: keys and values of block `from` to block `to`, for each (from, to) in `copies`."""
    if runner.device.type == "cpu":  # copying one by one takes a third of the time
        for cache in runner.kv_caches:
            for source, target in copies:
                cache[target].copy_(cache[source])
        return
    from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

    copy_kv_cache_blocks_inplace(runner.kv_caches, runner.kv_cache_config.num_blocks, list(copies))
