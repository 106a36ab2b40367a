"""Top-k and top-p, in a form that gives a row the same tokens whatever the other rows are."""

import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

SAMPLER_BYTES = 2**30  # the most memory that das's part of sampling takes beside vLLM's, whatever the batch
SORTED_CELL_BYTES = 48  # for each logit: what sorting takes, counted by tests/verify/test_top_p.py


def profiled_bytes(rows: int, vocab: int, dtype: torch.dtype) -> int:
    """Returns the most bytes that sampling a pass of `rows` rows takes: vLLM's logits, of the model's dtype, and das's
    copies."""
    return rows * vocab * dtype.itemsize + min(SAMPLER_BYTES, rows * vocab * SORTED_CELL_BYTES)


def rows_summed_alike(vocab: int) -> int:
    """Returns the most rows of `vocab` logits whose cumulative sums torch computes on a GPU with 512 threads a row, as
    it does for 2 rows. By torch's ScanUtils.cuh, which gives a row fewer threads where there are more rows; a single
    row takes another algorithm. At least 2."""
    return 1 << max(1, (vocab - 1).bit_length() - 9)


def keep_likeliest(logits: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None) -> torch.Tensor:
    """Apply top-k and top-p, float32 [rows, vocab], maybe in place. top_k, top_p: [rows]; None: no such restriction.

    On a GPU a row's cumulative sum, which top-p needs, depends on how many rows are summed together. So there rows are
    handled in groups of 2 to `rows_summed_alike` rows, few enough for SAMPLER_BYTES, and a single row twice.
    """
    if top_k is None and top_p is None:
        return logits
    # Always the sorting form: vLLM picks its faster forms by batch size, and they break ties differently.
    if top_p is None:
        return apply_top_k_top_p_pytorch(logits, top_k, None)
    # A request with top-p 1.0 must keep tokens whose probability underflows, also beside one with lower top-p.
    top_p = torch.where(top_p >= 1.0, 2.0, top_p)
    most = min(rows_summed_alike(logits.shape[1]), max(2, SAMPLER_BYTES // (logits.shape[1] * SORTED_CELL_BYTES)))
    if logits.device.type == "cpu" or 2 <= len(logits) <= most:
        return apply_top_k_top_p_pytorch(logits, top_k, top_p)
    return in_groups(logits, top_k, top_p, most)


def in_groups(logits: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor, most: int) -> torch.Tensor:
    """Apply top-k and top-p in place, to at most `most` rows at a time. A group of one row is handled twice."""
    for first in range(0, len(logits), most):
        few = slice(first, min(first + most, len(logits)))
        copies = 2 if few.stop - first == 1 else 1
        group = logits[few].repeat(copies, 1)
        k, p = (None if each is None else each[few].repeat(copies) for each in (top_k, top_p))
        logits[few] = apply_top_k_top_p_pytorch(group, k, p)[: few.stop - first]
    return logits
