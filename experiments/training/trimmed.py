"""Leave most padding out of forward passes.

TRL pads the responses of a generation step to the longest of them, and every forward pass computes the padding too.
If one response has 800 tokens and the others have 150, padding is most of the work.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from das.general import ranks

LEAST = 0.8  # the shortest row of a forward pass has at least this share of the longest row's tokens


def without_padding(
    forward: Callable[..., Any],
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    logits_to_keep: int,
    batch_size: int | None,
    multiple: int,
    compute_entropy: bool = False,
    compute_aux_loss: bool = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Compute log-probs and entropies in several passes over rows of similar length, each pass cut to its longest row.

    forward: TRL's GRPOTrainer._get_per_token_logps_and_entropies. This function has the same arguments and results.
    multiple: in every pass, the numbers of prompt columns and of response columns are multiples of this number.

    Only the forward pass is cut. TRL makes the micro-batches, and computes losses and metrics over whole
    micro-batches, so every loss_type means what it means in TRL. Log-probs differ from TRL's by float rounding.
    """
    options = {"compute_entropy": compute_entropy, "compute_aux_loss": compute_aux_loss, **others}
    # The balance loss of a mixture of experts depends on which rows share a pass, and ranks that shard weights must run
    # equally many passes. In both cases passes are not divided by length.
    as_many = compute_aux_loss or ranks.count() > 1
    lengths = attention_mask.sum(dim=1).tolist()
    passes = similar_rows(lengths, batch_size or len(lengths), least=0.0 if as_many else LEAST)
    parts = []
    for rows in passes:
        ids, mask, response = trimmed(input_ids[rows], attention_mask[rows], logits_to_keep, multiple)
        parts.append(forward(model, ids, mask, response, **options))
    logps, entropies, aux_losses = zip(*parts, strict=True)
    return (
        in_place(logps, passes, logits_to_keep),
        in_place(entropies, passes, logits_to_keep) if compute_entropy else None,
        torch.stack(aux_losses).mean() if compute_aux_loss else None,
    )


def similar_rows(lengths: Sequence[int], at_most: int, least: float) -> list[list[int]]:
    """Divide rows into passes of similar length, longest first.

    at_most: the most rows of a pass. least: the shortest row of a pass has at least this share of the longest's tokens.
    """
    passes: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if passes and len(passes[-1]) < at_most and lengths[row] >= least * lengths[passes[-1][0]]:
            passes[-1].append(row)
        else:
            passes.append([row])
    return passes


def trimmed(
    ids: torch.Tensor, mask: torch.Tensor, response: int, multiple: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Cut off the columns that no row uses, left of the prompts and right of the responses.

    ids, mask: [rows, tokens]. response: how many of the last columns belong to the responses. multiple: the remaining
    columns of prompts, and those of responses, are a multiple of it. Returns ids, mask and response after the cut.
    """
    start = mask.size(1) - response
    used = mask.bool().any(dim=0)
    prompt_used, response_used = used[:start].nonzero(), used[start:].nonzero()
    prompt = start - int(prompt_used[0]) if len(prompt_used) else 1
    kept = int(response_used[-1]) + 1 if len(response_used) else 1
    prompt, kept = min(start, -(-prompt // multiple) * multiple), min(response, -(-kept // multiple) * multiple)
    columns = slice(start - prompt, start + kept)
    return ids[:, columns], mask[:, columns], kept


def in_place(parts: Sequence[torch.Tensor], passes: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    """Put the rows of all passes back into their original order, filled up with zeros to `width` columns.

    parts: one tensor [rows, tokens] for each pass. passes: the original row numbers of each pass.
    """
    filled = torch.cat([pad(part, (0, width - part.size(1))) for part in parts])
    order = torch.tensor([row for rows in passes for row in rows], device=filled.device)
    return filled[order.argsort()]
