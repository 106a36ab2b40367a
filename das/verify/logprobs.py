"""Computes the log-probs of emitted tokens, in the form in which vLLM returns them."""

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.metadata import SamplingMetadata

from das.verify.host_copies import on_device
from das.verify.noise import REJECTED
from das.verify.sampling_parameters import UnsupportedSampling


def emitted_logprobs(
    metadata: SamplingMetadata, mode: str, values: torch.Tensor, emitted: torch.Tensor, cells: np.ndarray | None
) -> LogprobsTensors:
    """Returns the log-probs of the emitted tokens in vLLM's own layout: requests * (longest draft + 1) cells, one for
    each token that could be emitted.

    mode: vLLM's logprobs_mode. values: logits [rows, vocab]. emitted: token ids [requests, longest draft + 1]. cells:
    for each of them, the row of `values` on which it was sampled; None in a pass without drafts.
    Raises UnsupportedSampling for a request with logprob_token_ids.
    """
    if metadata.logprob_token_ids:
        raise UnsupportedSampling(
            "logprob_token_ids cannot be combined with keyed sampling: ask for logprobs=N instead"
        )
    num_logprobs = metadata.max_num_logprobs
    assert num_logprobs is not None
    tokens = emitted.reshape(-1, 1)
    if cells is not None:
        cells = cells.reshape(-1)
        every_cell = num_logprobs == -1
        # On a GPU this is the one time that sampling waits for the GPU.
        used = np.arange(len(cells)) if every_cell else (tokens[:, 0] != REJECTED).cpu().numpy().nonzero()[0]
        needed = {"of_used": cells[used], "used": used}
        if tokens.device != values.device:  # drafts that branch are walked on the host
            needed["tokens"] = tokens.numpy()[used]
        rows = on_device(values.device, needed)
        values = values[rows["of_used"]]
    if not mode.endswith("logits"):
        values = values.log_softmax(dim=-1)
    if num_logprobs == -1:
        return LogprobsTensors(torch.empty(0), values, torch.empty(0))
    if cells is not None:
        tokens = rows["tokens"] if "tokens" in rows else tokens[rows["used"]]
    listed_tokens = tokens.to(torch.int64)
    listed = values.gather(-1, listed_tokens)
    ranks = (values >= listed).sum(dim=-1)
    if num_logprobs > 0:
        top, top_tokens = _top(values, num_logprobs)
        listed, listed_tokens = torch.cat((listed, top), dim=1), torch.cat((listed_tokens, top_tokens), dim=1)
    listed_tokens = listed_tokens.to(torch.int32)
    if cells is not None:  # cells without an emitted token stay 0, and vLLM drops them
        listed_tokens, listed, ranks = (
            compact.new_zeros((len(cells), *compact.shape[1:])).index_copy_(0, rows["used"].long(), compact)
            for compact in (listed_tokens, listed, ranks)
        )
    return LogprobsTensors(listed_tokens, listed, ranks)


def _top(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the `count` greatest values of each row and their tokens, both [rows, count]. Of equal values the ones
    with the smallest token ids come first. `topk` alone would choose among them by the shape of the batch."""
    least = values.topk(count, dim=-1).values[:, -1:]
    is_equal = values == least
    room = count - (values > least).sum(dim=-1, keepdim=True)
    is_chosen = (values > least) | (is_equal & (is_equal.cumsum(dim=-1) <= room))
    ids = torch.arange(values.shape[-1], device=values.device)
    tokens = torch.where(is_chosen, -ids, -len(ids)).topk(count, dim=-1).indices  # by rising id
    top, order = values.gather(-1, tokens).sort(dim=-1, descending=True, stable=True)
    return top, tokens.gather(-1, order)
