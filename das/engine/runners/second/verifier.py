"""Keyed sampling in vLLM's second model runner, in passes with and without drafts.

vLLM's own sampler applies each request's sampling parameters to all of its rows, and its own rejection sampler splits a
pass into pieces of bounded memory and computes log-probs. Only the draw is das's: the same noise(seed, position) and
the same top-k and top-p as in the first runner (das/verify/sampler.py), and a drafted token is accepted if and only if
it equals the token that is sampled on its row.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from das.verify.host_copies import on_device
from das.verify.noise import (
    REJECTED,
    accept_inputs,
    device_accept,
    device_argmax,
    emitted_cells,
    keyed_argmax,
    keyed_verify,
    noise_inputs,
)
from das.verify.sampling_parameters import GREEDY_BELOW

if TYPE_CHECKING:
    from das.engine.runners.second.runner import SecondRunner


class Draws:
    """Draws the tokens of one runner's passes. Its `sample` takes the place of `sample` of vLLM's sampler."""

    def __init__(self, das_runner: "SecondRunner"):
        self.das_runner = das_runner
        self.vllm_sampler = das_runner.vllm.sampler

    def processed(
        self,
        logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: np.ndarray,
        *rest: Any,
    ) -> torch.Tensor:
        """Returns the logits after all sampling parameters, float32 [rows, vocab]. rest: as for vLLM's
        Sampler.apply_sampling_params."""
        sampler = self.vllm_sampler
        logits = sampler.apply_sampling_params(
            logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, *rest, skip_top_k_top_p=True
        ).to(torch.float32)
        top_k, top_p = sampler.sampling_states.get_top_k_top_p(expanded_idx_mapping, idx_mapping_np)
        if top_p is not None:  # a request with top-p 1.0 keeps all tokens, also beside one with lower top-p
            top_p = torch.where(top_p >= 1.0, 2.0, top_p)
        return apply_top_k_top_p_pytorch(logits, top_k, top_p)

    def keys(self, requests: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns the seed and the position of each request's next token, int64, and which requests are greedy, bool;
        None if none is. requests: their indices in vLLM's arrays, int [requests]."""
        states = self.vllm_sampler.sampling_states
        greedy = states.temperature.np[requests] < GREEDY_BELOW
        return states.seeds.np[requests], self.das_runner.positions[requests], greedy if greedy.any() else None

    def sample(
        self,
        logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: np.ndarray,
        *rest: Any,
        return_logprobs: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample a pass without drafts: one row for each request. Returns the tokens, int64 [requests], and the
        processed logits."""
        das_sampler = self.das_runner.sampler
        das_sampler.begin_pass(self.das_runner, logits, [0] * len(logits), np.zeros(len(logits), np.int64))
        logits = self.processed(logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, *rest)
        tokens = keyed_argmax(logits, *self.keys(idx_mapping_np))
        if das_sampler.remembers:
            das_sampler.remember(logits, tokens[:, None], None)
        return tokens, logits


class KeyedVerifier(RejectionSampler):
    """vLLM's rejection sampler, in which a drafted token is accepted if and only if it equals the sampled one."""

    def __init__(self, draws: Draws):
        vllm = draws.das_runner.vllm
        super().__init__(vllm.sampler, vllm.speculative_config, vllm.device)
        self.draws = draws
        self._num_drafted = np.zeros(0, np.int64)  # of each request of the pass
        self._first = 0  # the first request of the next piece

    def __call__(self, logits: torch.Tensor, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Sample a pass with drafts. logits: [rows, vocab]; a request's rows lie together, the one after its text
        first. Returns vLLM's SamplerOutput."""
        self._num_drafted, self._first = input_batch.num_draft_tokens_per_req.astype(np.int64), 0
        counts = self._num_drafted + 1
        offset = np.arange(len(logits)) - np.repeat(np.cumsum(counts) - counts, counts)
        das_runner = self.draws.das_runner
        das_runner.sampler.begin_pass(das_runner, logits, self._num_drafted.tolist(), offset)
        return super().__call__(logits, input_batch, *args, **kwargs)

    def _verify(
        self,
        logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        draft_sampled: torch.Tensor,
        pos: torch.Tensor,
        cu_num_logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: np.ndarray,
        expanded_idx_mapping: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        seq_lens_upper_bound_np: np.ndarray,
        verify_draft_sampled: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Verify a piece of the pass: consecutive requests. Returns its processed logits, [rows, vocab], the emitted
        tokens, [requests, longest draft + 1], and how many of them count.

        verify_draft_sampled: the input token of each row; behind a request's first row, its drafted tokens, or -1 where
        a grammar rules the token out.
        """
        logits = self.draws.processed(
            logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, draft_sampled, expanded_local_pos,
            seq_lens_upper_bound_np,
        )  # fmt: skip
        num_drafted = self._num_drafted[self._first : self._first + len(idx_mapping_np)]
        self._first += len(idx_mapping_np)
        width = self.num_speculative_steps + 1
        seeds, positions, greedy = self.draws.keys(idx_mapping_np)
        accepting = accept_inputs(num_drafted, width)
        if logits.device.type == "cpu":
            drafted = verify_draft_sampled[torch.from_numpy(accepting["followed"] + 1)]
            emitted = keyed_verify(logits, num_drafted, drafted, seeds, positions, greedy, width)
        else:
            owner = np.repeat(np.arange(len(num_drafted)), num_drafted + 1)
            offset = np.arange(len(owner)) - np.repeat(np.cumsum(num_drafted + 1) - num_drafted - 1, num_drafted + 1)
            own_greedy = None if greedy is None else greedy[owner]
            keys = noise_inputs(seeds[owner], positions[owner] + offset, own_greedy)
            inputs = on_device(logits.device, keys | accepting)
            drafted = verify_draft_sampled[inputs["followed"] + 1]
            emitted = device_accept(device_argmax(logits, inputs), drafted, inputs)
        if self.draws.das_runner.sampler.remembers:
            self.draws.das_runner.sampler.remember(logits, emitted, emitted_cells(num_drafted, width))
        return logits, emitted.to(torch.int64), (emitted != REJECTED).sum(dim=1, dtype=torch.int32)
