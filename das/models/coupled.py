"""Coupled drafts: a drafter that is a model draws its tokens with the noise that the verifier will use.

    drafted token = argmax_v( s * log q(v) + Gumbel(seed, position)[v] )

Here q is the drafter's distribution, and s a scale. The verifier emits argmax(log p + Gumbel(seed, position)), where p
is the policy's distribution. Where q is near p, the same noise almost always chooses the same token, but the likeliest
token of q would be emitted only with probability p(token). Emitted tokens do not depend on drafts, so every s is exact
(docs/exactness.md). A head is less sure of its likeliest tokens than the policy is, and a scale above 1 makes it surer.
"""

import numpy as np
import torch

from das.verify.layout import RunningBatch
from das.verify.noise import keyed_argmax
from das.verify.sampler import GREEDY_BELOW

# Scales; how often each would be right: docs/log.md#the-house-smaller-2026-11-28.
OF_MODELS = 1.0  # of whole models: copies of the policy, draft models
OF_HEADS = 2.0  # of draft heads


class CoupledSampler:
    """Draws a drafter's tokens with the noise that the verifier will use: argmax(scale * log q + Gumbel(seed,
    position))."""

    def __init__(self, scale: float):
        self.scale = scale
        self._runner: RunningBatch
        # Of each row of the round: its row in the runner's batch, seed and position of its first drafted token, whether
        # it is greedy, how many tokens it has drafted.
        self._rows = self._seeds = self._positions = self._greedy = self._num_drafted = np.zeros(0, np.int64)

    def begin(self, runner: RunningBatch, rows: np.ndarray | None = None) -> None:
        """Begin a round of drafting. rows: rows of the runner's batch, int64 [rows]; None: all rows."""
        batch = runner.input_batch
        rows = np.arange(batch.num_reqs) if rows is None else np.asarray(rows, np.int64)
        self._runner, self._rows, self._seeds = runner, rows, runner.seeds_of(rows)
        self._positions = batch.num_tokens_no_spec[rows].astype(np.int64) - batch.num_prompt_tokens[rows]
        self._greedy = batch.temperature_cpu[rows] < GREEDY_BELOW
        self._num_drafted = np.zeros(len(rows), np.int64)

    def draw(self, logits: torch.Tensor, among: np.ndarray | None = None) -> torch.Tensor:
        """Draw the next drafted token of each row. Call it once for each depth.

        logits: the drafter's unprocessed logits, float32 [rows, vocab]; changed in place. among: which rows, as indices
        into the rows of `begin`, int64 [rows]; None: all of them. Returns the tokens, int64 [rows], on the logits'
        device.
        """
        among = np.arange(len(self._rows)) if among is None else np.asarray(among, np.int64)
        num_drafted = self._num_drafted[among]
        self._num_drafted[among] += 1
        # Penalties and bad words do not count these drafted tokens: drafts may be worse for it, but not wrong.
        logits = self._runner.processed(logits.to(torch.float32), self._rows[among], num_drafted)
        positions = self._positions[among] + num_drafted
        return keyed_argmax(logits * self.scale, self._seeds[among], positions, self._greedy[among])
