"""Forced rollouts: the verifier samples recorded tokens, so that recorded responses run through a real engine.

The recorded token's logit is raised before the keyed sampler (das/verify/sampler.py) draws. All that follows is the
ordinary path: the same noise, the same verification, the same number of rows. So drafts, budgets, scheduling and KV
cache cost as much as if the policy had written this text, whatever its weights are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from das.verify.admission import FORCED_KEY
from das.verify.batch import RunningBatch
from das.verify.host_copies import on_device
from das.verify.layout import Layout
from das.verify.sampler import KeyedSampler

RAISE = 1e4  # added to a logit; far more than logits, temperature and noise can make up for


class ForcedSampler:
    """A KeyedSampler for recorded responses: a request whose extra_args name one of `responses` emits that response.
    Other requests are sampled."""

    def __init__(self, sampler: KeyedSampler, responses: Mapping[str, Sequence[int]]):
        self.keyed = sampler
        self.seeds, self.forbidden_tokens = sampler.seeds, sampler.forbidden_tokens  # for drafters that are models
        self.remembers, self.remembered = False, ()  # the policy's distributions did not make the recorded text
        self._responses = {name: np.asarray(tokens, np.int64) for name, tokens in responses.items()}

    def sample(self, runner: RunningBatch, logits: torch.Tensor, drafts: Any) -> Any:
        """Raise the recorded tokens' logits, then sample. logits: [rows, vocab], changed in place."""
        batch = runner.input_batch
        num_drafted = [0] * batch.num_reqs if drafts is None else drafts.num_draft_tokens
        rows: list[np.ndarray] = []
        tokens: list[np.ndarray] = []
        # Number of drafted tokens that lead to each row.
        offset = np.zeros(batch.num_reqs, np.int64) if drafts is None else Layout.of(drafts).offset
        first_row = 0
        for i, name in enumerate(batch.req_ids):
            extra = runner.requests[name].sampling_params.extra_args or {}
            if FORCED_KEY in extra:
                position = int(batch.num_tokens_no_spec[i] - batch.num_prompt_tokens[i])
                coming = self._responses[extra[FORCED_KEY]][position:]
                own_offset = offset[first_row : first_row + num_drafted[i] + 1]
                known = (own_offset < len(coming)).nonzero()[0]  # rows before the response's end
                rows.append(first_row + known)
                tokens.append(coming[own_offset[known]])
            first_row += num_drafted[i] + 1
        if rows:
            cells = on_device(logits.device, {"rows": np.concatenate(rows), "tokens": np.concatenate(tokens)})
            logits[cells["rows"], cells["tokens"]] += RAISE
        return self.keyed.sample(runner, logits, drafts)
