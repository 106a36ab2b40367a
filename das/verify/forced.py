"""Forced rollouts: the verifier samples recorded tokens, so that recorded responses run through a real engine.

The recorded token's logit is raised before the verifier draws (das/engine/runner/verifier.py). All that follows is the
ordinary path: the same noise, the same verification, the same number of rows. So drafts, budgets, scheduling and KV
cache cost as much as if the policy had written this text, whatever its weights are.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from das.drafter.distributions import NO_PAIR, PAIRS
from das.verify.layout import Batch, Remembered, on_device

RAISE = 1e4  # added to a logit; far more than logits, temperature and noise can make up for


class Forced:
    """The recorded responses that requests emit which name them in their extra_args.

    recorded: the distributions of some of them, uint32 [tokens, PAIRS]. A request that emits such a response must have
    the seed with which it was sampled. This policy's distributions did not make the text, so they are computed, which
    costs what it costs in any rollout, and dropped.
    """

    def __init__(self, responses: Mapping[str, Sequence[int]], recorded: Mapping[str, np.ndarray]):
        self.recorded = dict(recorded)
        self._tokens = np.concatenate([np.asarray(tokens, np.int64) for tokens in responses.values()])
        lengths = np.array([len(tokens) for tokens in responses.values()], np.int64)
        spans = np.stack((np.cumsum(lengths) - lengths, lengths), axis=1).tolist()
        self._spans: dict[str | None, list[int]] = dict(zip(responses, spans, strict=True))  # begin in _tokens, length
        self._spans[None] = [0, 0]

    def raise_logits(self, batch: Batch, logits: torch.Tensor, starts: torch.Tensor, width: int) -> None:
        """Raise the logits of the recorded tokens. logits: [rows, vocab], changed in place. starts: where the rows of
        each request begin, and their number, [requests + 1]. width: the most rows that a request may have."""
        spans = np.array([self._spans[request.forced] for request in batch.requests], np.int64).reshape(-1, 2)
        begin, length = spans.T[:, :, None]
        at = (batch.lengths - batch.prompts)[:, None] + np.arange(width)
        is_recorded = at < length
        if not is_recorded.any():
            return
        next_tokens = np.where(is_recorded, self._tokens[np.where(is_recorded, begin + at, 0)], -1)
        device, requests = logits.device, len(batch.requests)
        owner = torch.arange(requests, device=device).repeat_interleave(starts.diff(), output_size=len(logits))
        offset = torch.arange(len(logits), device=device) - starts[owner]
        tokens = on_device(device, {"tokens": next_tokens})["tokens"][owner, offset].long()
        raised = (tokens >= 0).to(logits.dtype) * RAISE
        logits.scatter_add_(1, tokens.clamp(min=0)[:, None], raised[:, None])

    def remembered(self, batch: Batch, width: int) -> list[Remembered]:
        """Returns the recorded distributions of the pass, with `width` rows for each request."""
        if not self.recorded:
            return []
        found = np.full((len(batch.requests), width, PAIRS), NO_PAIR, np.uint32)
        for rows, request, position in zip(found, batch.requests, batch.lengths - batch.prompts, strict=True):
            own = self.recorded.get(request.forced or "", rows[:0])[int(position) :][:width]
            rows[: len(own)] = own
        return [Remembered(found.reshape(-1, PAIRS), np.full(len(found), width - 1))]
