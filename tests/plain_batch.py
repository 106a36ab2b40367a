"""Make a batch of requests without an engine: vLLM's own sampler, with das's draws, for given sampling parameters.

With it the verifier runs on logits of any shape. On a CPU vLLM's kernels are replaced, as in engines of das.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams

# isort: split
from das.engine.requests import Request
from das.engine.runner.stand_in import replace_kernels  # first, because it prepares vLLM's runner for CPUs
from das.engine.runner.verifier import Draws, KeyedVerifier
from das.verify.layout import Batch

# isort: split
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.states import RequestState

LONGEST = 64  # tokens of a text
PROMPT = 1  # tokens of a prompt


class PlainRunner:
    """das's part of a model runner, as far as sampling needs it, with one request for each of `parameters`.

    vocab: number of tokens. longest: the longest draft. device: name of a torch device. keeps_bits: see Runner.
    """

    def __init__(
        self,
        parameters: Sequence[SamplingParams],
        vocab: int,
        longest: int = 0,
        device: str = "cpu",
        logprobs_mode: Any = "processed_logprobs",
        keeps_bits: bool = True,
    ):
        on, count = torch.device(device), len(parameters)
        if on.type == "cpu":
            replace_kernels()
        states = RequestState(count, LONGEST, count * LONGEST, max(longest, 1), vocab, on)
        config: Any = SimpleNamespace(reasoning_config=None)
        sampler = Sampler(config, count, vocab, on, states, logprobs_mode=logprobs_mode)
        speculative = SimpleNamespace(
            num_speculative_tokens=longest, enable_adaptive_verification=False, rejection_sample_method="standard"
        )
        self.vllm: Any = SimpleNamespace(
            sampler=sampler, req_states=states, speculative_config=speculative, device=on, vocab_size=vocab
        )
        requests: list[Request] = []
        self.rows = np.zeros(count, np.int64)
        for i, params in enumerate(parameters):
            name = f"{i}-plain"
            requests.append(Request(name, "plain", LONGEST - PROMPT, prompt=PROMPT, params=params))
            states.add_request(name, PROMPT, [0] * PROMPT, 0, LONGEST - PROMPT)
            self.rows[i] = states.req_id_to_index[name]
            sampler.add_request(int(self.rows[i]), params)
        states.apply_staged_writes()
        sampler.apply_staged_writes()
        states.prefill_len.np[:] = 0  # behind their prompts: before, vLLM takes drafts for placeholders
        states.prefill_len.copy_to_uva()
        self.positions = np.zeros(count, np.int64)  # tokens of each response so far, by the indices in `rows`
        self.batch = Batch.of(self.vllm, requests, self.rows, self.positions)
        self.draws = Draws(self.vllm, self.positions, keeps_bits)
        self.draws.batch = self.batch
        sampler.sample = self.draws.sample
        self.verifier = KeyedVerifier(self.draws)

    def sample(self, logits: torch.Tensor, drafts: Sequence[Sequence[int]] | None) -> Any:
        """Sample a pass. logits: [rows, vocab]; without drafts one row a request, with them one more for each drafted
        token. Returns vLLM's SamplerOutput."""
        batch = self._batch_of(drafts)
        if drafts is None:
            return self.vllm.sampler(logits, batch)
        return self.verifier(logits, batch, None)

    def emit(self, num_emitted: np.ndarray) -> None:
        """Let each response grow by so many tokens, int64 [requests]."""
        self.positions[self.rows] += num_emitted
        self.batch.lengths += num_emitted

    def _batch_of(self, drafts: Sequence[Sequence[int]] | None) -> Any:
        """vLLM's InputBatch of a pass, as far as its samplers read it."""
        device, requests = self.vllm.device, len(self.rows)
        counts = np.array([len(draft) for draft in drafts] if drafts is not None else [0] * requests, np.int32)
        owner = np.repeat(np.arange(requests), counts + 1)
        ends = np.cumsum(counts + 1)
        place = np.arange(len(owner)) - (ends - counts - 1)[owner]
        inputs = np.zeros(len(owner), np.int32)
        if drafts is not None:
            inputs[place > 0] = [token for draft in drafts for token in draft]
        lengths = self.batch.lengths
        pos = lengths[owner] - 1 + place

        def there(array: np.ndarray, kind: torch.dtype) -> torch.Tensor:
            return torch.from_numpy(array).to(device, kind)

        starts = np.concatenate(([0], ends))
        return SimpleNamespace(
            num_reqs=requests,
            req_ids=[request.name for request in self.batch.requests],
            idx_mapping=there(self.rows, torch.int64),
            idx_mapping_np=self.rows,
            expanded_idx_mapping=there(self.rows[owner], torch.int64),
            expanded_local_pos=there(place, torch.int32),
            cu_num_logits=there(starts, torch.int32),
            cu_num_logits_np=starts.astype(np.int32),
            logits_indices=torch.arange(len(owner), device=device),
            positions=there(pos, torch.int64),
            input_ids=there(inputs, torch.int32),
            seq_lens=there(lengths + counts, torch.int32),
            seq_lens_cpu_upper_bound=torch.from_numpy((lengths + counts).astype(np.int32)),
            num_draft_tokens_per_req=counts,
        )
