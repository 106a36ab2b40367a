"""Keyed sampling in vLLM's model runner, in passes with and without drafts.

vLLM's own sampler applies each request's sampling parameters to all of its rows, and its own rejection sampler splits a
pass into pieces of bounded memory and computes log-probs. Only the draw is das's: the same noise(seed, position), and a
drafted token is accepted if and only if it equals the token that is sampled on the row before its own. An engine that
keeps bits also has top-k and top-p in a form that does not depend on the other rows (das/verify/top_p.py).
"""

import functools
import inspect
from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from das.verify.forced import Forced
from das.verify.layout import GREEDY_BELOW, Batch, Remembered
from das.verify.noise import REJECTED, draw_on_device, keyed_verify, likeliest, used_rows
from das.verify.top_p import keep_likeliest


class Draws:
    """Draws the tokens of one runner's passes. Its `sample` takes the place of `sample` of vLLM's sampler.

    vllm: its model runner. positions: the tokens of each response so far, by the indices of vLLM's arrays. keeps_bits:
    see Runner. batch: the requests of the running pass. is_late: whether the device alone knows how many drafted tokens
    it verifies for each request (late_lengths.py). remembers: whether the drafter remembers the distributions from
    which tokens were sampled. forced: recorded responses; None: all requests are sampled.
    """

    def __init__(self, vllm: Any, positions: np.ndarray, keeps_bits: bool):
        self.vllm, self.positions, self.keeps_bits = vllm, positions, keeps_bits
        self.batch: Batch
        self.is_late = self.remembers = False
        self.forced: Forced | None = None
        self._recorded: list[Remembered] = []  # of the pass, where they are known
        self._kept: list[np.ndarray] = []  # the distributions of the pass, piece by piece
        self._sizes: list[int] = []  # requests of these pieces

    @functools.cached_property
    def _takes_vocab(self) -> bool:
        """Whether vLLM's sampler asks for the size of the vocabulary, as it does since 0.33."""
        return "vocab_size" in inspect.signature(self.vllm.sampler.sampling_states.get_top_k_top_p).parameters

    def begin_pass(self, logits: torch.Tensor, starts: torch.Tensor, width: int) -> None:
        """Begin to draw a pass. logits: all of its rows, [rows, vocab]; changed in place. starts: where the rows of
        each request begin, and their number, [requests + 1]. width: the most rows that a request may have."""
        self._recorded, self._kept, self._sizes = [], [], []
        if self.forced is not None:
            self.forced.raise_logits(self.batch, logits, starts, width)
            if self.remembers:
                self._recorded = self.forced.remembered(self.batch, width)

    def remembered(self, num_drafted: np.ndarray) -> list[Remembered]:
        """Returns the distributions from which the pass was sampled, piece by piece. num_drafted: of each request,
        int64 [requests]; a GPU may still be copying them."""
        if self.forced is not None:
            return self._recorded
        counts = np.split(num_drafted, np.cumsum(self._sizes)[:-1])
        return [Remembered(pairs, own) for pairs, own in zip(self._kept, counts, strict=False)]

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
        sampler = self.vllm.sampler
        if not self.keeps_bits:
            parameters = idx_mapping, idx_mapping_np, *rest
            return sampler.apply_sampling_params(logits, expanded_idx_mapping, *parameters).to(torch.float32)
        logits = sampler.apply_sampling_params(
            logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, *rest, skip_top_k_top_p=True
        ).to(torch.float32)
        of_vocab = (logits.shape[-1],) * self._takes_vocab
        top_k, top_p, *_ = sampler.sampling_states.get_top_k_top_p(expanded_idx_mapping, idx_mapping_np, *of_vocab)
        return keep_likeliest(logits, top_k, top_p)

    def processed_rows(self, logits: torch.Tensor, rows: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
        """Returns a drafter's logits, processed. See das.models.coupled.Processed."""
        device = logits.device
        request, pos = torch.from_numpy(rows).to(device), torch.from_numpy(lengths - 1).to(device)
        none = torch.zeros(len(rows), dtype=torch.int32, device=device)
        return self.processed(logits, request, request, rows, pos, none, none, lengths)

    def draw(
        self, logits: torch.Tensor, inputs: torch.Tensor, pos: torch.Tensor, owners: torch.Tensor,
        starts: torch.Tensor, width: int,
    ) -> torch.Tensor:  # fmt: skip
        """Returns the tokens of a piece of the pass, int32 [requests, width], and lets the drafter remember their
        distributions. inputs: the input token of each row; behind a request's first row, its drafted tokens. pos: its
        place in its text. owners: its request's index in vLLM's arrays. starts: see `begin_pass`; of the piece."""
        states, on_cpu = self.vllm.sampler.sampling_states, logits.device.type == "cpu"
        num_drafted = (starts.diff() - 1).to(torch.int64).numpy() if on_cpu else np.zeros(0, np.int64)
        if on_cpu and not self.is_late:  # rows behind a rejected token are not drawn
            first = starts[:-1].long()
            requests, is_drafted = owners[first].numpy(), torch.ones(len(logits), dtype=torch.bool)
            is_drafted[first] = False
            greedy = states.temperature.np[requests] < GREEDY_BELOW
            keys = states.seeds.np[requests], self.positions[requests], greedy if greedy.any() else None
            emitted = keyed_verify(logits, num_drafted, inputs[is_drafted], *keys, width)
        else:
            positions = pos + 1 - self.vllm.req_states.prompt_len.gpu[owners]
            greedy = states.temperature.gpu[owners] < GREEDY_BELOW
            emitted = draw_on_device(logits, inputs, starts, states.seeds.gpu[owners], positions, greedy, width)
        if self.remembers:
            self._kept.append(likeliest(logits, used_rows(emitted, num_drafted) if on_cpu else num_drafted))
            self._sizes.append(len(emitted))
        return emitted

    def sample(
        self,
        logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: np.ndarray,
        pos: torch.Tensor,
        *rest: Any,
        return_logprobs: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample a pass without drafts: one row for each request. Returns the tokens, int64 [requests], and the
        processed logits."""
        starts = torch.arange(len(logits) + 1, device=logits.device)
        self.begin_pass(logits, starts, 1)
        logits = self.processed(logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, *rest)
        tokens = self.draw(logits, idx_mapping, pos, expanded_idx_mapping, starts, 1)
        return tokens[:, 0].to(torch.int64), logits


class KeyedVerifier(RejectionSampler):
    """vLLM's rejection sampler, in which a drafted token is accepted if and only if it equals the sampled one."""

    def __init__(self, draws: Draws):
        vllm = draws.vllm
        super().__init__(vllm.sampler, vllm.speculative_config, vllm.device)
        self.draws = draws

    def __call__(self, logits: torch.Tensor, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Sample a pass with drafts. logits: [rows, vocab]; a request's rows lie together, the one after its text
        first. Returns vLLM's SamplerOutput."""
        self.enable_adaptive_verification = self.draws.is_late  # log-probs go by the device's lengths
        self.draws.begin_pass(logits, input_batch.cu_num_logits, self.num_speculative_steps + 1)
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
        verify_draft_sampled: torch.Tensor | None = None,  # vLLM 0.31 has none
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Verify a piece of the pass: consecutive requests. Returns its processed logits, [rows, vocab], the emitted
        tokens, int64 [requests, longest draft + 1], and how many of them count.

        verify_draft_sampled: the input token of each row; behind a request's first row, its drafted tokens, or -1 where
        a grammar rules the token out.
        """
        logits = self.draws.processed(
            logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, draft_sampled, expanded_local_pos,
            seq_lens_upper_bound_np,
        )  # fmt: skip
        inputs = draft_sampled if verify_draft_sampled is None else verify_draft_sampled
        width = self.num_speculative_steps + 1
        emitted = self.draws.draw(logits, inputs, pos, expanded_idx_mapping, cu_num_logits, width)
        return logits, emitted.to(torch.int64), (emitted != REJECTED).sum(dim=1, dtype=torch.int32)
