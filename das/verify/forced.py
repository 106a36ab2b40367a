"""Forced rollouts: the verifier samples recorded tokens, so that recorded responses run through a real engine.

The recorded token's logit is raised before the keyed sampler (das/verify/sampler.py) draws. All that follows is the
ordinary path: the same noise, the same verification, the same number of rows. So drafts, budgets, scheduling and KV
cache cost as much as if the policy had written this text, whatever its weights are.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from das.drafter.distributions import NO_PAIR, PAIRS
from das.verify.admission import FORCED_KEY
from das.verify.layout import Layout, RunningBatch, on_device
from das.verify.sampler import KeyedSampler, Remembered

RAISE = 1e4  # added to a logit; far more than logits, temperature and noise can make up for


class ForcedSampler:
    """A KeyedSampler for recorded responses: a request whose extra_args name one of `responses` emits that response.
    Other requests are sampled.

    remembered: the recorded distributions of some responses, uint32 [tokens, PAIRS]. A request that emits such a
    response must have the seed with which it was sampled. This policy's distributions did not make the text, so they
    are computed, which costs what it costs in any rollout, and dropped.
    """

    def __init__(
        self, sampler: KeyedSampler, responses: Mapping[str, Sequence[int]], remembered: Mapping[str, np.ndarray]
    ):
        self.keyed = sampler
        self.remembers = False  # whether the drafter remembers the distributions from which tokens were sampled
        self.remembered: list[Remembered] = []  # the distributions of the last pass
        self._tokens = np.concatenate([np.asarray(tokens, np.int64) for tokens in responses.values()])
        lengths = np.array([len(tokens) for tokens in responses.values()], np.int64)
        spans = np.stack((np.cumsum(lengths) - lengths, lengths), axis=1).tolist()
        self._spans = dict(zip(responses, spans, strict=True))  # response -> its begin in _tokens, and its length
        self._span_of: dict[str, list[int]] = {}  # the same by request
        self._distributions = dict(remembered)

    def knows_noise(self, recorded: str) -> bool:
        """Whether a recorded response is emitted with its own noise, so that drafts may use the noise."""
        return recorded in self._distributions

    def begin_pass(self, runner: RunningBatch, logits: torch.Tensor, layout: Layout) -> None:
        """Raise the recorded tokens' logits, and give the drafter their recorded distributions.

        logits: [rows, vocab], changed in place.
        """
        batch = runner.input_batch
        count = batch.num_reqs
        for name in batch.req_ids:
            if name not in self._span_of:
                extra = runner.requests[name].sampling_params.extra_args or {}
                self._span_of[name] = self._spans[extra[FORCED_KEY]] if FORCED_KEY in extra else [0, 0]
        begin, length = np.array([self._span_of[name] for name in batch.req_ids], np.int64).reshape(count, 2).T
        owner = layout.owner
        at = (batch.num_tokens_no_spec[:count] - batch.num_prompt_tokens[:count])[owner] + layout.offset
        forced = (at < length[owner]).nonzero()[0]  # rows before their response's end
        if len(forced):
            tokens = self._tokens[begin[owner[forced]] + at[forced]]
            raised = on_device(logits.device, {"rows": forced, "tokens": tokens})
            logits[raised["rows"], raised["tokens"]] += RAISE
        self.keyed.begin_pass(runner, logits, layout)
        self.keyed.remembers = self.remembers
        self.remembered = [self._recorded(runner, layout)] if self.remembers and self._distributions else []

    def _recorded(self, runner: RunningBatch, layout: Layout) -> Remembered:
        """Returns the recorded distributions of the pass."""
        batch = runner.input_batch
        rows_of, first_rows = (layout.num_drafted + 1).tolist(), layout.first_row
        found = np.full((sum(rows_of), PAIRS), NO_PAIR, np.uint32)
        for i, name in enumerate(batch.req_ids):
            extra = runner.requests[name].sampling_params.extra_args or {}
            position = int(batch.num_tokens_no_spec[i] - batch.num_prompt_tokens[i])
            own = self._distributions.get(extra.get(FORCED_KEY, ""), found[:0])[position:][: rows_of[i]]
            found[first_rows[i] : first_rows[i] + len(own)] = own
        return Remembered(found, first_rows[:, None] + np.arange(max(rows_of)))

    def remember(self, logits: torch.Tensor, emitted: torch.Tensor, layout: Layout) -> None:
        """Compute the distributions, as KeyedSampler does; the drafter does not get them."""
        self.keyed.remember(logits, emitted, layout)
