"""Draft passes: the policy's own model computes the next tokens of requests, on the KV cache of the policy.

A pass reads the keys and values that the policy left in a request's blocks. It writes its own into scratch blocks,
which vLLM's scheduler does not know of. They stand in for the request's last, partly filled block and for those behind
it. So nothing that a draft pass writes, right or wrong, is ever read by the policy. (When draft passes wrote in place,
non-finite values of a broken draft changed what the policy computed, although its own values overwrote them.)
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from das.general.errors import NotInstalled
from das.models.coupled import Processed
from das.verify.layout import Batch, on_device

REFUSED = (
    "self-drafts need a model that has full attention in every layer, with heads of one size and the scheduler's KV "
    "blocks: choose another method, such as das"
)


def blocks_needed(max_tokens: int, block_size: int) -> int:
    """Returns the number of scratch blocks that a request needs for `max_tokens` positions, which may begin anywhere in
    a block."""
    return (max_tokens + block_size - 2) // block_size + 1


def with_scratch_blocks(config: Any, num_blocks: int) -> Any:
    """Returns vLLM's KVCacheConfig with this many more blocks. Raises NotInstalled if das cannot enlarge such a
    cache."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    if len(config.kv_cache_tensors) != 1 or len(specs) != 1 or type(specs[0]) is not FullAttentionSpec:
        raise NotInstalled(REFUSED)
    tensor, total = config.kv_cache_tensors[0], config.num_blocks + num_blocks
    layer_stride = tensor.layer_stride
    if layer_stride == config.num_blocks * tensor.block_stride:  # each layer's blocks lie together
        layer_stride = total * tensor.block_stride
    grown = replace(tensor, size=tensor.size // config.num_blocks * total, layer_stride=layer_stride)
    return replace(config, num_blocks=total, kv_cache_tensors=[grown])


def _copy_blocks(runner: Any, copies: Sequence[tuple[int, int]]) -> None:
    """Copy KV blocks in every layer: keys and values of block `from` to block `to`, for each (from, to) in `copies`."""
    if runner.device.type == "cpu":  # copying one by one takes a third of the time
        for cache in runner.kv_caches:
            for source, target in copies:
                cache[target].copy_(cache[source])
        return
    from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

    copy_kv_cache_blocks_inplace(runner.kv_caches, runner.kv_cache_config.num_blocks, list(copies))


def pass_inputs(
    device: torch.device, tables: np.ndarray, block_size: int, positions: np.ndarray, tokens: np.ndarray
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Returns what a pass over one token of each of some rows reads: vLLM's CommonAttentionMetadata, the tokens and
    their positions. All of it goes to the device in one copy, for which the host does not wait.

    tables: KV blocks of each row, int32 [R, blocks]. positions: of the tokens in the rows' texts, int64 [R]. tokens:
    token ids, int64 [R].
    """
    from vllm.v1.attention.backend import CommonAttentionMetadata

    num_rows = len(positions)
    slots = tables[np.arange(num_rows), positions // block_size].astype(np.int64) * block_size
    slots += positions % block_size
    query_starts, seq_lens = np.arange(num_rows + 1, dtype=np.int32), (positions + 1).astype(np.int32)
    arrays = {"query_starts": query_starts, "seq_lens": seq_lens, "tables": tables, "slots": slots, "tokens": tokens}
    there = on_device(device, arrays | {"positions": positions})
    common = CommonAttentionMetadata(
        query_start_loc=there["query_starts"],
        query_start_loc_cpu=torch.from_numpy(query_starts),
        seq_lens=there["seq_lens"],
        num_reqs=num_rows,
        num_actual_tokens=num_rows,
        max_query_len=1,
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=there["tables"],
        slot_mapping=there["slots"].long(),
        is_prefilling=torch.zeros(num_rows, dtype=torch.bool),
        seq_lens_cpu_upper_bound=torch.from_numpy(seq_lens),
    )
    return common, there["tokens"], there["positions"].long()


def in_pass(vllm_config: Any, group: Any, common: Any) -> AbstractContextManager[None]:
    """Inside the `with` block, a model can compute a pass that vLLM did not plan. group: vLLM's AttentionGroup of the
    model's layers. common: the metadata from `pass_inputs`.
    """
    from vllm.forward_context import set_forward_context

    names = group.layer_names
    return set_forward_context(
        dict.fromkeys(names, group.get_metadata_builder().build(0, common)),
        vllm_config,
        num_tokens=common.num_actual_tokens,
        slot_mapping=dict.fromkeys(names, common.slot_mapping),
        skip_compiled=True,
    )


class DraftPasses:
    """Runs draft passes: passes of the policy's own model over requests that decode.

    vllm: its model runner. positions: see Batch.of. processed: see Processed. scratch: the KV blocks into which the
    passes write, `blocks_needed(max_tokens, block size)` for each request that may decode at once. max_tokens: the most
    positions that are computed for a request between two target passes.
    """

    def __init__(self, vllm: Any, positions: np.ndarray, processed: Processed, scratch: Sequence[int], max_tokens: int):
        self.runner, self.processed, self._positions = vllm, processed, positions
        self.block_size: int = vllm.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        if vllm.kernel_block_sizes != [self.block_size] or len(vllm.attn_groups[0]) != 1:
            raise NotInstalled(REFUSED)
        self.scratch = np.array(scratch, np.int32).reshape(-1, blocks_needed(max_tokens, self.block_size))
        self._next = np.empty(0, np.int64)  # position of each row's next token
        self._tables = np.empty((0, 0), np.int32)  # blocks of each row

    def begin(self, requests: Sequence[Any]) -> Batch:
        """Let the next passes continue the present texts of these requests. Returns them as a batch. On a GPU this
        waits for the device."""
        index = self.runner.req_states.req_id_to_index
        rows = np.array([index[request.name] for request in requests], np.int64)
        batch = Batch.of(self.runner, requests, rows, self._positions)
        self._next = batch.lengths - 1  # the position of the last token
        self._tables = self.runner.block_tables.block_tables[0].gpu[torch.from_numpy(rows)].cpu().numpy()
        first = self._next // self.block_size
        copies = []
        for i, (column, free) in enumerate(zip(first.tolist(), self.scratch, strict=False)):
            if self._next[i] % self.block_size:
                copies.append((int(self._tables[i, column]), int(free[0])))
            width = min(len(free), self._tables.shape[1] - column)
            self._tables[i, column : column + width] = free[:width]
        _copy_blocks(self.runner, copies)
        return batch

    def run(self, among: np.ndarray, tokens: np.ndarray) -> torch.Tensor:
        """Let the policy's model compute the next token of some of the rows that `begin` got.

        among: indices into these rows, int64 [A]. tokens: token ids, int64 [A]. Returns the hidden states, [A, hidden].
        """
        positions = self._next[among]
        self._next[among] += 1
        common, *inputs = pass_inputs(self.runner.device, self._tables[among], self.block_size, positions, tokens)
        with in_pass(self.runner.vllm_config, self.runner.attn_groups[0][0], common):
            hidden: torch.Tensor = self.runner.model(*inputs)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits of these hidden states, float32 [A, vocab]."""
        return self.runner.model.compute_logits(hidden).float()

    def forget(self) -> None:
        """Fill the scratch blocks with zeros, so that no later pass reads values of earlier passes."""
        for cache in self.runner.kv_caches:
            cache[torch.from_numpy(self.scratch.reshape(-1).astype(np.int64)).to(cache.device)] = 0
