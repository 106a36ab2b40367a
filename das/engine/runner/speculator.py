"""vLLM's speculator in an engine of das.

Where das drafts, on the host, HostSpeculator takes its place. vLLM's own speculators that run a model (draft_model,
eagle3, mtp) stay, and CoupledSpeculator replaces two methods of this one object:

- sample_draft: tokens are drawn with the verifier's noise (das/models/coupled.py).
- propose: a round of drafting begins, and its time is measured.

vLLM's own drafters from texts, n-grams and suffixes, on the host.

vLLM has them for its deprecated first runner, whose batch has arrays on the host; here they get the same from this
runner's. (This runner's own n-grams run on the device and draft the longest length for every request.)
"""

import time
from collections.abc import Callable, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from das.engine.patches.replace import patch, put, required
from das.engine.requests import Pass
from das.engine.rollouts.meter import RolloutMeter
from das.engine.runner.verifier import Draws
from das.models.coupled import OF_HEADS, OF_MODELS, CoupledSampler
from das.verify.layout import on_device


class HostSpeculator(BaseSpeculator):
    """Stands where vLLM's runner wants a speculator and drafts are made on the host, once a pass is over (Flights)."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: torch.device):
        shape = vllm_config.scheduler_config.max_num_seqs, vllm_config.speculative_config.num_speculative_tokens
        self._none = torch.zeros(shape, dtype=torch.int64, device=device)

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Do nothing: nothing of a drafter on the host can be captured."""

    def capture(self) -> None:
        """Do nothing, for the same reason."""

    def propose(self, input_batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns zeros, where the drafts will be: token ids of each request of the pass."""
        return self._none[: input_batch.num_reqs]


def filled_up(drafts: Sequence[Sequence[int]], longest: int, device: torch.device) -> torch.Tensor:
    """Returns drafts as vLLM takes them: int64 [requests, longest], filled up with 0."""
    tokens = np.zeros((len(drafts), longest), np.int32)
    is_drafted = np.arange(longest) < np.fromiter(map(len, drafts), np.int64, len(drafts))[:, None]
    tokens[is_drafted] = np.fromiter(chain.from_iterable(drafts), np.int32)
    return on_device(device, {"drafts": tokens})["drafts"].to(torch.int64)


class CoupledSpeculator:
    """Lets one of vLLM's speculators draw its tokens with the verifier's noise. vllm: its runner. draws: those of the
    verifier. meter: returns the running rollout's."""

    def __init__(self, vllm: Any, draws: Draws, meter: Callable[[], RolloutMeter]):
        is_model = vllm.speculative_config.method == "draft_model"
        self.sampler = CoupledSampler(OF_MODELS if is_model else OF_HEADS)
        self._draws, self._meter = draws, meter
        self._speculator = speculator = vllm.speculator
        self._is_dry = False  # whether vLLM only tries out a pass, without requests
        required(speculator, "sample_draft")
        self._logits = getattr(speculator, "compute_draft_logits", None) or self._logits_of_model
        put(speculator, sample_draft=self._draw)
        patch(speculator, "propose", self._propose)

    def _propose(self, original: Callable[..., Any], *args: Any, dummy_run: bool = False, **kwargs: Any) -> Any:
        start, self._is_dry = time.perf_counter(), dummy_run
        if not dummy_run:
            self.sampler.begin(self._draws.batch, self._draws.processed_rows)
        drafts = original(*args, dummy_run=dummy_run, **kwargs)
        self._meter().draft_s += time.perf_counter() - start
        return drafts

    def _logits_of_model(self, hidden_states: torch.Tensor, spec_step_idx: int) -> torch.Tensor:
        """compute_draft_logits of vLLM 0.31."""
        return self._speculator.model.compute_logits(hidden_states)

    def _draw(self, hidden_states: torch.Tensor, *args: Any, spec_step_idx: int = 0) -> torch.Tensor:
        """Replaces speculator.sample_draft. hidden_states: [requests, size], one row for each request of the batch.
        Returns the rows' token ids, int64."""
        logits = self._logits(hidden_states, spec_step_idx)
        if self._is_dry:
            return logits.argmax(dim=-1)
        return self.sampler.draw(logits)


TEXT_METHODS = ("ngram", "suffix")  # vLLM's names of them


class TextDrafts:
    """Drafts by the method of the engine's speculative_config, one of TEXT_METHODS. vllm: its model runner."""

    remembers = False
    keeps_texts = False  # whether it drafts from requests that have ended, and cannot leave any out

    def __init__(self, vllm: Any):
        config = vllm.vllm_config
        self.longest = config.speculative_config.num_speculative_tokens
        self._method = config.speculative_config.method
        self._runner, self._vllm = vllm, self._made(config)

    def _made(self, config: Any) -> Any:
        """Returns vLLM's drafter."""
        if self._method == "ngram":
            from vllm.v1.spec_decode.ngram_proposer import NgramProposer  # imports numba

            return NgramProposer(config)
        from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

        self.keeps_texts = True
        return SuffixDecodingProposer(config)

    def propose(self, done: Pass) -> list[list[int]]:
        """Draft for every row of the batch, after a target pass. Returns each row's drafted token ids. On a GPU this
        waits for the device, which has the texts."""
        names, states = [request.name for request in done.requests], self._runner.req_states
        rows = np.array([states.req_id_to_index[name] for name in names], np.int64)
        texts = states.all_token_ids.gpu[torch.from_numpy(rows)].cpu().numpy()
        lengths = np.array([request.prompt + len(request.output_token_ids) for request in done.requests], np.int64)
        if self._method == "ngram":
            return self._vllm.propose(self.longest, done.tokens, lengths.astype(np.int32), texts)
        as_first = SimpleNamespace(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            num_tokens_no_spec=lengths,
            num_prompt_tokens=np.array([request.prompt for request in done.requests], np.int64),
            token_ids_cpu=texts,
        )
        return self._vllm.propose(self.longest, as_first, done.tokens)
