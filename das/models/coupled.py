"""Coupled drafts: a drafter that is a model draws its tokens with the noise that the verifier will use.

    drafted token = argmax_v( s * log q(v) + Gumbel(seed, position)[v] )

Here q is the drafter's distribution, and s a scale. The verifier emits argmax(log p + Gumbel(seed, position)), where p
is the policy's distribution. Where q is near p, the same noise almost always chooses the same token, but the likeliest
token of q would be emitted only with probability p(token). Emitted tokens do not depend on drafts, so every s is exact
(docs/exactness.md). A head is less sure of its likeliest tokens than the policy is, and a scale above 1 makes it surer.
"""

from collections.abc import Callable

import numpy as np
import torch

from das.verify.layout import GREEDY_BELOW, Batch
from das.verify.noise import keyed_argmax

# Applies each request's sampling parameters to a drafter's logits, as they are applied to the verifier's. It takes
# logits, float32 [rows, vocab], which it may change; the rows' indices in vLLM's arrays; the lengths of their texts.
Processed = Callable[[torch.Tensor, np.ndarray, np.ndarray], torch.Tensor]

# Scales; how often each would be right: docs/log.md#the-house-smaller-2026-11-28.
OF_MODELS = 1.0  # of whole models: copies of the policy, draft models
OF_HEADS = 2.0  # of draft heads


class CoupledSampler:
    """Draws a drafter's tokens with the noise that the verifier will use: argmax(scale * log q + Gumbel(seed,
    position))."""

    def __init__(self, scale: float):
        self.scale = scale
        self._processed: Processed
        # Of each row of the round: its index in vLLM's arrays, its seed, the tokens of its text and of its prompt,
        # whether it is greedy, how many tokens it has drafted.
        self._rows = self._seeds = self._lengths = self._prompts = self._num_drafted = np.zeros(0, np.int64)
        self._greedy = np.zeros(0, np.bool_)

    def begin(self, batch: Batch, processed: Processed) -> None:
        """Begin a round of drafting, for all requests of this batch."""
        self._processed, self._rows, self._seeds = processed, batch.rows, batch.seeds
        self._lengths, self._prompts = batch.lengths.astype(np.int64), batch.prompts
        self._greedy = batch.temperatures < GREEDY_BELOW
        self._num_drafted = np.zeros(len(self._rows), np.int64)

    def draw(self, logits: torch.Tensor, among: np.ndarray | None = None) -> torch.Tensor:
        """Draw the next drafted token of each row. Call it once for each depth.

        logits: the drafter's unprocessed logits, float32 [rows, vocab]; changed in place. among: which rows, as indices
        into the rows of `begin`, int64 [rows]; None: all of them. Returns the tokens, int64 [rows], on the logits'
        device.
        """
        among = np.arange(len(self._rows)) if among is None else np.asarray(among, np.int64)
        lengths = self._lengths[among] + self._num_drafted[among]
        self._num_drafted[among] += 1
        # Penalties and bad words do not count these drafted tokens: drafts may be worse for it, but not wrong.
        logits = self._processed(logits.to(torch.float32), self._rows[among], lengths)
        positions = lengths - self._prompts[among]
        return keyed_argmax(logits * self.scale, self._seeds[among], positions, self._greedy[among])
