"""Coupled drafts for vLLM's own drafters that run a model: draft_model, eagle, eagle3, mtp, dflash.

They share a base class, SpecDecodeBaseProposer, which drafts the likeliest token at every depth. The hooks go onto the
objects of one engine:

- drafter._sample_draft_tokens: tokens are drawn with the verifier's noise (das/verify/coupled.py).
- runner.propose_draft_token_ids: a round of drafting begins. vLLM drafts before it writes what a pass emitted into its
  batch, so the round is told.
- runner._sample: what was emitted teaches the sampler.

A drafter that draws its tokens in a way of its own stays as it is, and the log says so. Drawing needs the drafted
tokens on the host, so on a GPU every depth waits for the device.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch

from das.verify.coupled import CoupledSampler
from das.verify.noise import REJECTED

DRAWS = ("propose", "_sample_draft_tokens", "_greedy_sample")  # how the base class drafts; others may override it
logger = logging.getLogger("vllm.das")


def couple(runner: Any) -> CoupledSampler | None:
    """Let the drafter of this model runner draw coupled drafts if it is one of vLLM's that run a model.

    Returns None for other drafters, and for one that cannot be hooked.
    """
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    drafter = getattr(runner, "drafter", None)
    if not isinstance(drafter, SpecDecodeBaseProposer):
        return None
    known, base = type(drafter), SpecDecodeBaseProposer
    why = [f"{name} is not as expected" for name in DRAWS if getattr(known, name, None) is not getattr(base, name, id)]
    if getattr(drafter, "vocab_mapping", None) is not None:  # vLLM 0.24 has none
        why.append("its vocabulary is not the policy's")
    if why:
        logger.warning("%s drafts its likeliest tokens, not coupled ones: %s", known.__name__, "; ".join(why))
        return None
    method = _CoupledMethod(runner)
    runner._sample = functools.partial(method.sample, runner._sample)
    runner.propose_draft_token_ids = functools.partial(method.propose, runner.propose_draft_token_ids)
    drafter._sample_draft_tokens = method.draw
    return method.sampler


class _CoupledMethod:
    """The hooks of one engine."""

    def __init__(self, runner: Any):
        self.runner = runner
        self.sampler = CoupledSampler()
        self._emitted: list[list[int]] = []  # by each row of the batch in the pass that just ran

    def sample(self, original: Callable[..., Any], logits: torch.Tensor, spec_decode_metadata: Any) -> Any:
        """runner._sample, observed."""
        output = original(logits, spec_decode_metadata)
        unfinished = self.runner.discard_request_mask.np
        self._emitted = [
            [] if unfinished[row] else [token for token in tokens if token != REJECTED]
            for row, tokens in enumerate(output.sampled_token_ids.tolist())
        ]
        self.sampler.observe(self.runner.input_batch.req_ids, self._emitted)
        return output

    def propose(
        self, original: Callable[..., Any], scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """runner.propose_draft_token_ids, for which a round of drafting begins."""
        # vLLM gives lists only where it drafts after its own bookkeeping (disable_padded_drafter_batch).
        in_batch = isinstance(sampled_token_ids, list)
        self.sampler.begin(self.runner, emitted=None if in_batch else self._emitted)
        return original(scheduler_output, sampled_token_ids, *args, **kwargs)

    def draw(self, hidden_states: torch.Tensor, sampling_metadata: Any) -> tuple[torch.Tensor, None]:
        """drafter._sample_draft_tokens. hidden_states: [requests, size], or [requests * depths, size], a request's
        depths together, where one pass drafts them all. Returns token ids, int64, of the same rows.
        """
        drafter = self.runner.drafter
        logits = drafter.model.compute_logits(hidden_states)
        if drafter.parallel_drafting:
            by_depth = logits.view(-1, drafter.num_speculative_tokens, logits.shape[-1])
            drawn = torch.stack([self._draw(by_depth[:, depth]) for depth in range(by_depth.shape[1])], dim=1).view(-1)
        else:
            drawn = self._draw(logits)
        return drawn.to(hidden_states.device), None

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        tokens, _ = self.sampler.draw(logits)
        return torch.from_numpy(tokens)
