"""Coupled drafts for vLLM's own drafters that run a model: draft_model, eagle, eagle3, mtp, dflash.

They share a base class, SpecDecodeBaseProposer, which drafts the likeliest token at every depth. One method is replaced
on the drafter of one engine:

- drafter._sample_draft_tokens: tokens are drawn with the verifier's noise (das/verify/coupled.py).

A drafter that draws its tokens in a way of its own stays as it is, and the log says so. Drawing needs the drafted
tokens on the host, so on a GPU every depth waits for the device.
"""

import logging
from typing import Any, Self

import torch

from das.engine.runners.protocol import Runner
from das.verify.coupled import CoupledSampler
from das.verify.noise import REJECTED

DRAWS = ("propose", "_sample_draft_tokens", "_greedy_sample")  # methods by which the base class drafts
logger = logging.getLogger("vllm.das")


class CoupledMethod:
    """Lets one of vLLM's own drafters draw its tokens with the verifier's noise, in one engine."""

    @classmethod
    def of(cls, runner: Runner) -> Self | None:
        """Let the drafter of this model runner draw its tokens with the verifier's noise, if it is one of vLLM's that
        run a model.

        Returns None for other drafters, and for one whose method cannot be replaced.
        """
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

        drafter = getattr(runner.vllm, "drafter", None)
        if not isinstance(drafter, SpecDecodeBaseProposer):
            return None
        known, base = type(drafter), SpecDecodeBaseProposer
        why = [
            f"{name} is not as expected" for name in DRAWS if getattr(known, name, None) is not getattr(base, name, id)
        ]
        if getattr(drafter, "vocab_mapping", None) is not None:  # vLLM 0.24 has none
            why.append("its vocabulary is not the policy's")
        if why:
            logger.warning("%s drafts its likeliest tokens, not coupled ones: %s", known.__name__, "; ".join(why))
            return None
        return cls(runner, drafter)

    def __init__(self, runner: Runner, drafter: Any):
        self.sampler = CoupledSampler()
        self._runner = runner
        self._drafter = drafter
        # Tokens of each row of the batch in the pass that just ran. vLLM drafts before it writes them into its batch.
        self._emitted: list[list[int]] = []
        drafter._sample_draft_tokens = self._draw_depth

    def observe(self, output: Any) -> None:
        """Learn from the tokens that a pass emitted how good its drafts were. output: vLLM's SamplerOutput."""
        unfinished = self._runner.unfinished
        self._emitted = [
            [] if unfinished[row] else [token for token in tokens if token != REJECTED]
            for row, tokens in enumerate(output.sampled_token_ids.tolist())
        ]
        self.sampler.observe(self._runner.input_batch.req_ids, self._emitted)

    def begin(self, sampled_token_ids: Any) -> None:
        """Begin a round of drafting. sampled_token_ids: the last pass's tokens, as vLLM gives them to the drafter."""
        # vLLM gives lists only where it drafts after its own bookkeeping (disable_padded_drafter_batch).
        in_batch = isinstance(sampled_token_ids, list)
        self.sampler.begin(self._runner, emitted=None if in_batch else self._emitted)

    def _draw_depth(self, hidden_states: torch.Tensor, sampling_metadata: Any) -> tuple[torch.Tensor, None]:
        """Replaces drafter._sample_draft_tokens. hidden_states: [requests, size]; if one pass drafts all depths,
        [requests * depths, size], with a request's depths together. Returns the rows' token ids, int64.
        """
        drafter = self._drafter
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
