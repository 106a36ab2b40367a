"""Coupled drafts for vLLM's own drafters that run a model, in vLLM's model runner: draft_model, eagle3, mtp.

vLLM's speculator runs the model. Two methods of this one object are replaced:

- sample_draft: tokens are drawn with the verifier's noise (das/verify/coupled.py).
- propose: a round of drafting begins, and its time is measured.

Drawing needs the drafted tokens on the host, so on a GPU every depth waits for the device.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from das.engine.patches.replace import patch, required
from das.verify.coupled import CoupledSampler

if TYPE_CHECKING:
    from das.engine.runner.runner import Runner


class CoupledSpeculator:
    """Lets one of vLLM's speculators draw its tokens with the verifier's noise."""

    def __init__(self, das_runner: "Runner"):
        self.sampler = CoupledSampler()
        self._das_runner = das_runner
        self._speculator = speculator = das_runner.vllm.speculator
        self._is_dry = False  # whether vLLM only tries out a pass, without requests
        required(speculator, "sample_draft")
        self._logits = getattr(speculator, "compute_draft_logits", None) or self._logits_of_model
        speculator.sample_draft = self._draw
        patch(speculator, "propose", self._propose)

    def _propose(self, original: Callable[..., Any], *args: Any, dummy_run: bool = False, **kwargs: Any) -> Any:
        start, self._is_dry = time.perf_counter(), dummy_run
        if not dummy_run:
            self.sampler.begin(self._das_runner)
        drafts = original(*args, dummy_run=dummy_run, **kwargs)
        self._das_runner.meter.draft_s += time.perf_counter() - start
        return drafts

    def _logits_of_model(self, hidden_states: torch.Tensor, spec_step_idx: int) -> torch.Tensor:
        """compute_draft_logits of vLLM 0.31."""
        logits: torch.Tensor = self._speculator.model.compute_logits(hidden_states)
        return logits

    def _draw(self, hidden_states: torch.Tensor, *args: Any, spec_step_idx: int = 0) -> torch.Tensor:
        """Replaces speculator.sample_draft. hidden_states: [requests, size], one row for each request of the batch.
        Returns the rows' token ids, int64."""
        logits = self._logits(hidden_states, spec_step_idx)
        if self._is_dry:
            drawn: torch.Tensor = logits.argmax(dim=-1)
            return drawn
        # vLLM's kernels take the tokens for contiguous; in rounds that learn they are a column.
        return torch.from_numpy(np.ascontiguousarray(self.sampler.draw(logits)[0])).to(hidden_states.device)
