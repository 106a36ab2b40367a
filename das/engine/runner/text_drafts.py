"""vLLM's own drafters from texts, n-grams and suffixes, and custom proposers of others, on the host.

vLLM has them for its deprecated first runner, whose batch has arrays on the host; here they get the same from this
runner's. (This runner's own n-grams run on the device and draft the longest length for every request.)
"""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from das.engine.runner.runner import Runner

TEXT_METHODS = ("ngram", "suffix", "custom_class")  # vLLM's names of them


class TextDrafts:
    """Drafts by the method of the engine's speculative_config, one of TEXT_METHODS."""

    def __init__(self, vllm_config: Any):
        self.longest = vllm_config.speculative_config.num_speculative_tokens
        self._method = vllm_config.speculative_config.method
        self._vllm: Any
        if self._method == "ngram":
            from vllm.v1.spec_decode.ngram_proposer import NgramProposer  # imports numba

            self._vllm = NgramProposer(vllm_config)
        elif self._method == "suffix":
            from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

            self._vllm = SuffixDecodingProposer(vllm_config)
        else:
            from vllm.v1.spec_decode.custom_class_proposer import create_custom_proposer

            self._vllm = create_custom_proposer(vllm_config)
        self._runner: Runner

    def attach(self, runner: "Runner") -> None:
        """Note the runner, before every `propose`."""
        self._runner = runner

    def propose(self, emitted: list[list[int]], lengths: np.ndarray) -> list[list[int]]:
        """See DasProposer.propose."""
        batch, known, drafts = self._runner.input_batch, self._runner.texts(), list[list[int]]()
        if self._method == "ngram":
            drafts = self._vllm.propose(self.longest, emitted, lengths.astype(np.int32), known)
            return drafts
        if self._method == "custom_class":
            drafts = self._vllm.propose(emitted, lengths.astype(np.int32), known)
            return drafts
        as_first = SimpleNamespace(
            req_ids=batch.req_ids,
            req_id_to_index=batch.req_id_to_index,
            num_tokens_no_spec=lengths,
            num_prompt_tokens=batch.num_prompt_tokens,
            token_ids_cpu=known,
        )
        drafts = self._vllm.propose(self.longest, as_first, emitted)
        return drafts
