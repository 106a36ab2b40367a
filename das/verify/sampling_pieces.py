"""Sample a pass in pieces of bounded memory. A piece has consecutive requests, and is sampled like a whole pass."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata

from das.verify.layout import Layout

SAMPLER_BYTES = 2**30  # the most memory that sampling a pass takes beside vLLM's own logits, whatever the batch
# Bytes for each logit of a piece, counted by tests/verify/test_sampling_pieces.py: a copy as float32, another for
# log-probs or noise, and a mask. The second number is for top-k or top-p, which also need memory to sort.
CELL_BYTES, SORTED_CELL_BYTES = 24, 48


def max_piece_rows(metadata: SamplingMetadata, vocab: int) -> int:
    """Returns the most rows of logits to sample at once: so many that sampling takes at most SAMPLER_BYTES."""
    sorts = metadata.top_k is not None or metadata.top_p is not None
    return max(1, SAMPLER_BYTES // (vocab * (SORTED_CELL_BYTES if sorts else CELL_BYTES)))


def profiled_bytes(rows: int, vocab: int, dtype: torch.dtype) -> int:
    """Returns the most bytes that sampling a pass of `rows` rows takes: vLLM's logits, of the model's dtype, and das's
    copies."""
    return rows * vocab * dtype.itemsize + min(SAMPLER_BYTES, rows * vocab * SORTED_CELL_BYTES)


def pieces_of(
    logits: torch.Tensor, layout: Layout | None, num_requests: int, max_rows: int
) -> Iterator[tuple[torch.Tensor, Layout]]:
    """Yields the pieces of a pass in order: their rows of logits, [rows of the piece, vocab], and the layout of these
    rows.

    layout: None for one row of each request. max_rows: the most rows of a piece, unless a single request has more.
    """
    if layout is None:
        layout = Layout(np.zeros(num_requests, np.int64), torch.empty(0, dtype=torch.int32, device=logits.device))
    first_row = 0
    for piece in layout.pieces(max_rows):
        yield logits[first_row : first_row + piece.num_rows], piece
        first_row += piece.num_rows


def joined(sampled: Sequence[tuple[torch.Tensor, LogprobsTensors | None]]) -> SamplerOutput:
    """Join the emitted tokens and log-probs of all pieces, in order, into the sampler's output."""
    parts = [logprobs for _, logprobs in sampled if logprobs is not None]
    return SamplerOutput(
        sampled_token_ids=torch.cat([tokens for tokens, _ in sampled]),
        logprobs_tensors=LogprobsTensors(*(torch.cat([part[i] for part in parts]) for i in range(3)))
        if parts
        else None,
    )
