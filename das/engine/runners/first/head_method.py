"""The history beside vLLM's method eagle3 (arm das_eagle3).

vLLM's own method computes the hidden states that a head reads, loads the head, and gives it KV blocks. One hook on the
engine's runner lets DasProposer draft in its place:

- runner.propose_draft_token_ids: DasProposer drafts, and runs the head where that pays
  (das/engine/drafters/head_draft.py).

So vLLM must give the emitted tokens as lists (disable_padded_drafter_batch), as it gives them to custom proposers.
"""

from typing import Any

import torch

from das.engine.drafters.head_draft import HeadDraft
from das.engine.proposer import DasProposer


class HeadMethod:
    """The hook of one engine. It must be made before das.engine.runners.first.runner.hook_runner times the drafts."""

    def __init__(self, runner: Any):
        self.runner = runner
        self.proposer = DasProposer(runner.vllm_config)
        runner.propose_draft_token_ids = self.propose

    def propose(
        self,
        scheduler_output: Any,
        sampled_token_ids: list[list[int]],
        sampling_metadata: Any,
        hidden_states: torch.Tensor,
        sample_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor],
        *args: Any,
    ) -> list[list[int]]:
        """runner.propose_draft_token_ids. aux_hidden_states: of each layer that the head reads, [tokens, hidden]."""
        proposer, batch = self.proposer, self.runner.input_batch
        proposer.attach(self.runner)
        assert isinstance(proposer.drafting_model, HeadDraft)
        proposer.drafting_model.keep(scheduler_output, aux_hidden_states)
        return proposer.propose(sampled_token_ids, batch.num_tokens_no_spec, batch.token_ids_cpu)
