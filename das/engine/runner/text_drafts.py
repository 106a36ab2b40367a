"""vLLM's own drafters from texts, n-grams and suffixes, and custom proposers of others, on the host.

vLLM has them for its deprecated first runner, whose batch has arrays on the host; here they get the same from this
runner's. (This runner's own n-grams run on the device and draft the longest length for every request.)
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from das.engine.requests import Pass

TEXT_METHODS = ("ngram", "suffix", "custom_class")  # vLLM's names of them


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
        if self._method == "suffix":
            from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

            self.keeps_texts = True
            return SuffixDecodingProposer(config)
        from vllm.v1.spec_decode.custom_class_proposer import create_custom_proposer

        return create_custom_proposer(config)

    def propose(self, done: Pass, planned: Sequence[int] | None = None) -> list[list[int]]:
        """Draft for every row of the batch, after a target pass. Returns each row's drafted token ids. On a GPU this
        waits for the device, which has the texts. planned: see DasProposer.propose; such passes are not planned."""
        names, states = [request.name for request in done.requests], self._runner.req_states
        rows = np.array([states.req_id_to_index[name] for name in names], np.int64)
        texts = states.all_token_ids.gpu[torch.from_numpy(rows)].cpu().numpy()
        lengths = np.array([request.prompt + len(request.output_token_ids) for request in done.requests], np.int64)
        drafts: list[list[int]]
        if self._method == "ngram":
            drafts = self._vllm.propose(self.longest, done.tokens, lengths.astype(np.int32), texts)
            return drafts
        if self._method == "custom_class":
            drafts = self._vllm.propose(done.tokens, lengths.astype(np.int32), texts)
            return drafts
        as_first = SimpleNamespace(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            num_tokens_no_spec=lengths,
            num_prompt_tokens=np.array([request.prompt for request in done.requests], np.int64),
            token_ids_cpu=texts,
        )
        drafts = self._vllm.propose(self.longest, as_first, done.tokens)
        return drafts
