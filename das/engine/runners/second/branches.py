"""Verification of branching drafts in vLLM's second model runner (das/engine/runners/branches.py). Three more hooks:

- cudagraph_manager.dispatch (GPU): a full graph has metadata for one run per request, so it must not be used.
- runner.prepare_inputs: the plan of the pass.
- runner.prepare_attn: positions and KV slots of the rows of branches.

vLLM's penalties and bad words take the rows before a row for its text. So requests that use them draft chains.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from das.engine.branching.scratch import refusal
from das.engine.branching.tree import is_chain
from das.engine.patches.replace import patch
from das.engine.runners.branches import Branches

if TYPE_CHECKING:
    from das.engine.runners.second.runner import SecondRunner


class SecondBranches(Branches):
    """Verifies branching drafts in one second model runner."""

    das_runner: "SecondRunner"

    def _install(self) -> None:
        runner = self.runner
        if runner.vllm_config.kv_transfer_config is not None or runner.model_config.uses_mrope:
            raise refusal("engines without KV transfer and multimodal positions")
        super()._install()
        patch(runner.cudagraph_manager, "dispatch", self._dispatch)
        runner.prepare_inputs = functools.partial(self._prepare_inputs, runner.prepare_inputs)
        runner.prepare_attn = functools.partial(self._prepare_attn, runner.prepare_attn)

    @property
    def are_running(self) -> bool:
        """Whether a draft branches in the running pass."""
        return self._pass is not None

    def _may_branch(self, name: str) -> bool:
        params = self.das_runner.requests[name].sampling_params
        penalties = params.presence_penalty, params.frequency_penalty, params.repetition_penalty - 1.0
        return super()._may_branch(name) and not any(penalties) and not params.bad_words

    def _dispatch(self, original: Callable[..., Any], num_reqs: int, *args: Any, **kwargs: Any) -> Any:
        if all(map(is_chain, self.parents.values())):
            return original(num_reqs, *args, **kwargs)
        # Full graphs hold some number of requests, and other graphs hold any.
        return replace(original(sys.maxsize, *args, **kwargs), num_reqs=None)

    def _prepare_inputs(self, original: Callable[..., Any], scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(scheduled, *args, **kwargs)
        self.das_runner.rows = batch.idx_mapping_np
        self._pass = self._plan(
            scheduled.scheduled_spec_decode_tokens,
            batch.req_ids,
            batch.num_scheduled_tokens.tolist(),
            batch.num_computed_tokens_np.tolist(),
        )
        return batch

    def _prepare_attn(self, original: Callable[..., Any], batch: Any) -> tuple[Any, torch.Tensor]:
        tables, slots = original(batch)  # of a chain
        if self._pass is not None:
            self._place(self._pass, batch.positions, slots[0])
        return tables, slots
