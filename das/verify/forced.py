"""Forced rollouts: the verifier samples recorded tokens, so that recorded responses run through a real engine.

The recorded token's logit is raised before the verifier draws (das/engine/runner/verifier.py). All that follows is the
ordinary path: the same noise, the same verification, the same number of rows. So drafts, budgets, scheduling and KV
cache cost as much as if the policy had written this text, whatever its weights are.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from das.drafter.distributions import NO_PAIR, PAIRS
from das.verify.layout import Batch, Layout, on_device
from das.verify.sampler import Remembered

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

    def raise_logits(self, batch: Batch, logits: torch.Tensor, layout: Layout) -> None:
        """Raise the logits of the recorded tokens. logits: [rows, vocab], changed in place."""
        spans = np.array([self._spans[request.forced] for request in batch.requests], np.int64).reshape(-1, 2)
        begin, length = spans.T
        owner = layout.owner
        at = (batch.lengths - batch.prompts)[owner] + layout.offset
        forced = (at < length[owner]).nonzero()[0]  # rows before their response's end
        if len(forced):
            tokens = self._tokens[begin[owner[forced]] + at[forced]]
            raised = on_device(logits.device, {"rows": forced, "tokens": tokens})
            logits[raised["rows"], raised["tokens"]] += RAISE

    def remembered(self, batch: Batch, layout: Layout) -> list[Remembered]:
        """Returns the recorded distributions of the pass."""
        if not self.recorded:
            return []
        rows_of, first_rows = (layout.num_drafted + 1).tolist(), layout.first_row
        found = np.full((sum(rows_of), PAIRS), NO_PAIR, np.uint32)
        for i, (request, position) in enumerate(zip(batch.requests, batch.lengths - batch.prompts, strict=True)):
            own = self.recorded.get(request.forced or "", found[:0])[int(position) :][: rows_of[i]]
            found[first_rows[i] : first_rows[i] + len(own)] = own
        return [Remembered(found, first_rows[:, None] + np.arange(max(rows_of)))]
