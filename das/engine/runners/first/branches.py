"""Verification of branching drafts in vLLM's first model runner (das/engine/runners/branches.py). Two more hooks:

- runner._prepare_inputs: positions and KV slots of the rows of branches.
- cudagraph_dispatcher.dispatch (GPU): a full graph has metadata for one run per request, so it must not be used.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from das.engine.branching.scratch import refusal
from das.engine.runners.branches import Branches
from das.verify.layout import PARENTS


class FirstBranches(Branches):
    """Verifies branching drafts in one first model runner."""

    def _install(self) -> None:
        runner = self.runner
        if runner.vllm_config.kv_transfer_config is not None or runner.shared_kv_cache_layers or runner.uses_mrope:
            raise refusal("engines without KV transfer, layers that share a KV cache, and multimodal positions")
        super()._install()
        runner._prepare_inputs = functools.partial(self._prepare_inputs, runner._prepare_inputs)
        dispatcher = runner.cudagraph_dispatcher
        dispatcher.dispatch = functools.partial(self._dispatch, dispatcher.dispatch)

    def _prepare_inputs(self, original: Callable[..., Any], scheduled: Any, num_scheduled: np.ndarray) -> Any:
        logits_indices, drafts, num_sampled = original(scheduled, num_scheduled)
        batch = self.runner.input_batch
        computed = batch.num_computed_tokens_cpu.tolist()
        self._pass = self._plan(scheduled.scheduled_spec_decode_tokens, batch.req_ids, num_scheduled.tolist(), computed)
        if self._pass is not None:
            setattr(drafts, PARENTS, self.node_parents)
            self._place(self._pass, self.runner.positions, batch.block_table[0].slot_mapping.gpu)
        return logits_indices, drafts, num_sampled

    def _dispatch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._pass is not None:
            from vllm.config import CUDAGraphMode

            kwargs["invalid_modes"] = {CUDAGraphMode.FULL} | (kwargs.get("invalid_modes") or set())
        return original(*args, **kwargs)

    def keep_accepted(self, output: Any) -> None:
        """Copy the scratch blocks of accepted nodes over the requests' own blocks. output: vLLM's SamplerOutput."""
        if self._pass is not None:
            self.copy_accepted(output.sampled_token_ids.tolist())
