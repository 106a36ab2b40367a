"""Forced rollouts: the verifier samples recorded tokens, so that recorded responses run through a real engine.

The recorded token's logit is raised before the keyed sampler (das/verify/sampler.py) draws. All that follows is the
ordinary path: the same noise, the same verification, the same number of rows. So drafts, budgets, scheduling and KV
cache cost as much as if the policy had written this text, whatever its weights are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from das.drafter.distributions import NO_PAIR, PAIRS
from das.verify.admission import FORCED_KEY
from das.verify.batch import RunningBatch
from das.verify.host_copies import on_device
from das.verify.layout import Layout
from das.verify.sampler import KeyedSampler, Remembered

RAISE = 1e4  # added to a logit; far more than logits, temperature and noise can make up for


class ForcedSampler:
    """A KeyedSampler for recorded responses: a request whose extra_args name one of `responses` emits that response.
    Other requests are sampled.

    remembered: the recorded distributions of some responses, uint32 [tokens, PAIRS]. A request that emits such a
    response must have the seed with which it was sampled. This policy's distributions did not make the text, so the
    drafter gets none for other requests.
    """

    def __init__(
        self, sampler: KeyedSampler, responses: Mapping[str, Sequence[int]], remembered: Mapping[str, np.ndarray]
    ):
        self.keyed = sampler
        self.seeds, self.seeds_of, self.processed = sampler.seeds, sampler.seeds_of, sampler.processed
        self.remembers = False  # whether the drafter remembers the distributions from which tokens were sampled
        self.remembered: list[Remembered] = []  # the distributions of the last pass
        self._responses = {name: np.asarray(tokens, np.int64) for name, tokens in responses.items()}
        self._distributions = dict(remembered)

    def knows_noise(self, recorded: str) -> bool:
        """Whether a recorded response is emitted with its own noise, so that drafts may use the noise."""
        return recorded in self._distributions

    def sample(self, runner: RunningBatch, logits: torch.Tensor, drafts: Any) -> Any:
        """Raise the recorded tokens' logits, then sample. logits: [rows, vocab], changed in place."""
        self.begin_pass(runner, logits, None if drafts is None else Layout.of(drafts))
        return self.keyed.sample(runner, logits, drafts)

    def begin_pass(self, runner: RunningBatch, logits: torch.Tensor, layout: Layout | None) -> None:
        """Raise the recorded tokens' logits, and give the drafter their recorded distributions.

        logits: [rows, vocab], changed in place. layout: None if each request has one row.
        """
        batch = runner.input_batch
        num_drafted = [0] * batch.num_reqs if layout is None else layout.num_drafted.tolist()
        offset = np.zeros(batch.num_reqs, np.int64) if layout is None else layout.offset
        rows: list[np.ndarray] = []
        tokens: list[np.ndarray] = []
        first_row = 0
        recorded = np.full((len(logits), PAIRS), NO_PAIR, np.uint32)  # distributions that the drafter gets
        first_rows = []
        for i, name in enumerate(batch.req_ids):
            extra = runner.requests[name].sampling_params.extra_args or {}
            first_rows.append(first_row)
            if FORCED_KEY in extra:
                position = int(batch.num_tokens_no_spec[i] - batch.num_prompt_tokens[i])
                coming = self._responses[extra[FORCED_KEY]][position:]
                own_offset = offset[first_row : first_row + num_drafted[i] + 1]
                known = (own_offset < len(coming)).nonzero()[0]  # rows before the response's end
                rows.append(first_row + known)
                tokens.append(coming[own_offset[known]])
                own = self._distributions.get(extra[FORCED_KEY], recorded[:0])[position:][: num_drafted[i] + 1]
                recorded[first_row : first_row + len(own)] = own
            first_row += num_drafted[i] + 1
        if rows:
            raised = on_device(logits.device, {"rows": np.concatenate(rows), "tokens": np.concatenate(tokens)})
            logits[raised["rows"], raised["tokens"]] += RAISE
        self.remembered = []
        if self.remembers and self._distributions:
            cells = np.array(first_rows)[:, None] + np.arange(max(num_drafted) + 1)
            self.remembered = [Remembered(recorded, cells)]

    def remember(self, logits: torch.Tensor, emitted: torch.Tensor, cells: np.ndarray | None) -> None:
        """Keep nothing: the policy's distributions did not make the recorded text."""
