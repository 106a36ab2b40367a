"""Make vLLM's first model runner sample with keyed noise, draft with das, and count its passes and tokens.

One object, FirstRunner, holds what das adds. Its methods replace these attributes of vLLM's runner:

- _sample: verification by keyed noise. vLLM has no extension point for the sampler of a drafted pass.
- _bookkeeping_sync: a pass is counted when vLLM has its tokens on the host, so that counting waits for nothing.
- propose_draft_token_ids: vLLM gives a custom proposer no request ids. This is also where drafting is timed.
- _input_fits_in_drafter: when one request nears max_model_len, vLLM skips the drafter for all requests and verifies
  drafts of token 0 instead. A drafter that runs no model does not need that.
- build_logitsprocs, replaced only while the runner is built: with drafts, vLLM does not load the processors of min_p
  and logit_bias, because its own verifier cannot use them. The keyed verifier can.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from das.engine.drafters.head_draft import HeadDraft
from das.engine.drafters.quantized_layers import QuantizedLayers
from das.engine.engine_config import das_options, drafts_by_das
from das.engine.patches import gpu
from das.engine.patches.replace import replaced, required
from das.engine.proposer import DasProposer
from das.engine.rollouts.meter import RolloutMeter
from das.engine.runners.draft_passes import DraftPasses
from das.engine.runners.first.branches import FirstBranches
from das.engine.runners.first.coupled_method import CoupledMethod
from das.engine.runners.head_passes import HeadPasses, PolicyPass
from das.verify.coupled import CoupledSampler
from das.verify.forced import ForcedSampler
from das.verify.sampler import KeyedSampler

EMITTED = -5  # index in what runner._bookkeeping_sync returns of the tokens that each request emitted, on the host


def runner_under_construction(vllm_config: Any) -> AbstractContextManager[None]:
    """Inside the `with` block, a model runner that is built loads all of vLLM's logits processors, if das drafts for
    it."""
    if not drafts_by_das(vllm_config):
        return nullcontext()
    from vllm.v1.worker import gpu_model_runner

    return replaced(gpu_model_runner, "build_logitsprocs", _all_logits_processors)


def _all_logits_processors(original: Callable[..., Any], vllm_config: Any, device: Any, pin: bool, *rest: Any) -> Any:
    if any(rest):  # pooling, custom processors
        return original(vllm_config, device, pin, *rest)
    from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors

    return LogitsProcessors(build(vllm_config, device, pin) for build in BUILTIN_LOGITS_PROCESSORS)


class FirstRunner:
    """The additions of das to `vllm`, vLLM's first model runner. Implements das.engine.runners.protocol.Runner."""

    def __init__(self, vllm: Any):
        self.vllm = vllm
        config, model_config = vllm.vllm_config, vllm.model_config
        self.meter = RolloutMeter()
        # The index tells the engines of a data-parallel deployment apart. vLLM sets the rank of dense models to 0.
        engine_rank = config.parallel_config.data_parallel_index
        self.sampler: KeyedSampler | ForcedSampler = KeyedSampler(
            model_config.seed or 0, model_config.logprobs_mode, engine_rank
        )
        self.weights_version = 0
        self.quantized: QuantizedLayers | None = None
        self.draft_blocks = range(0)
        self.has_head = das_options(config).head is not None
        # Here vLLM's own drafter only holds the head, so das's proposer, which drafts, is kept beside it.
        self._beside_head: DasProposer | None = DasProposer(config) if self.has_head else None
        self._coupled_method = None if self.has_head else CoupledMethod.of(self)
        self._branches: FirstBranches | None = None
        self._head_passes: HeadPasses | None = None
        self._num_drafted: list[int] = []  # drafted tokens of each row in the pass that was sampled last
        for name in ("_sample", "_input_fits_in_drafter"):
            required(vllm, name)
        self._bookkeeping = required(vllm, "_bookkeeping_sync")
        self._propose = required(vllm, "propose_draft_token_ids")
        vllm._sample = self._sample
        vllm._bookkeeping_sync = self._count_pass
        vllm.propose_draft_token_ids = self._draft
        if drafts_by_das(config):
            vllm._input_fits_in_drafter = lambda *args: True
            gpu.capture_undrafted_passes(vllm)
        gpu.profile_with_sampler(self)

    pass_ended: float | None = None
    is_warming_up = False

    def settle(self) -> None:
        """Do nothing: this runner waits for each pass."""

    @property
    def requests(self) -> Mapping[str, Any]:
        """See RunningBatch."""
        requests: Mapping[str, Any] = self.vllm.requests
        return requests

    @property
    def input_batch(self) -> Any:
        """See RunningBatch."""
        return self.vllm.input_batch

    @property
    def unfinished(self) -> np.ndarray:
        """See RunningBatch."""
        mask: np.ndarray = self.vllm.discard_request_mask.np
        return mask

    @property
    def coupled(self) -> CoupledSampler | None:
        """See Runner."""
        return None if self._coupled_method is None else self._coupled_method.sampler

    @property
    def drafter(self) -> Any:
        """See Runner."""
        return getattr(self.vllm, "drafter", None) if self._beside_head is None else self._beside_head

    @drafter.setter
    def drafter(self, drafter: Any) -> None:
        if self._beside_head is None:
            self.vllm.drafter = drafter
        else:
            self._beside_head = drafter

    def verify_branches(self, scratch: range) -> None:
        """See Runner."""
        self._branches = FirstBranches(self, scratch)

    def draft_passes(self, max_tokens: int) -> DraftPasses:
        """See Runner."""
        return DraftPasses(self, max_tokens)

    def block_tables(self, kv_group: int = 0) -> np.ndarray:
        """See Runner."""
        tables: np.ndarray = self.vllm.input_batch.block_table[kv_group].block_table.np
        return tables

    def texts(self) -> np.ndarray:
        """See Runner."""
        texts: np.ndarray = self.vllm.input_batch.token_ids_cpu
        return texts

    def head_passes(self) -> HeadPasses:
        """See Runner."""
        if self._head_passes is None:
            drafter = self.vllm.drafter
            self._head_passes = HeadPasses(self, drafter.model, drafter.draft_attn_groups[0], drafter.kv_cache_gid)
        return self._head_passes

    # ---- what vLLM's runner calls ----

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
        """Sample the tokens of a pass from its logits, [rows, vocab]. Returns vLLM's SamplerOutput."""
        batch = self.input_batch
        # The per-request generators are not used. On the CPU vLLM would call their set_offset, which torch lacks there.
        batch.generators.clear()
        batch.update_async_output_token_ids()
        drafted = spec_decode_metadata
        self._num_drafted = [0] * batch.num_reqs if drafted is None else drafted.num_draft_tokens
        self.sampler.remembers = getattr(self.drafter, "remembers", False)
        output = self.sampler.sample(self, logits, drafted)
        if self._coupled_method is not None:
            self._coupled_method.observe(output)
        if self._branches is not None:
            self._branches.keep_accepted(output)
        return output

    def _count_pass(self, *args: Any, **kwargs: Any) -> Any:
        """Count the pass after vLLM's own bookkeeping."""
        names = list(self.input_batch.req_ids)
        found = self._bookkeeping(*args, **kwargs)
        emitted: list[list[int]] = found[EMITTED]  # by row
        if not emitted:  # asynchronous scheduling: the tokens stay on the device, one for each finished prompt
            unfinished = self.unfinished
            num_emitted, known = [int(not unfinished[row]) for row in range(len(names))], None
        else:
            num_emitted, known = list(map(len, emitted)), self.requests
        self.meter.record_pass(names, self._num_drafted, num_emitted, known=known)
        return found

    def _draft(self, scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """Draft after a pass, and measure the time of drafting. sampled_token_ids: the tokens that each row emitted."""
        if self._coupled_method is not None:
            self._coupled_method.begin(sampled_token_ids)
        start = time.perf_counter()
        if self._beside_head is not None:
            drafts = self._draft_beside_head(self._beside_head, scheduler_output, sampled_token_ids, *args, **kwargs)
        elif hasattr(self.vllm.drafter, "attach"):
            self.vllm.drafter.attach(self)
            drafts = self._on_first_rank(scheduler_output, sampled_token_ids, *args, **kwargs)
        else:
            drafts = self._propose(scheduler_output, sampled_token_ids, *args, **kwargs)
        self.meter.draft_s += time.perf_counter() - start
        return drafts if self._branches is None else self._branches.fitting(drafts)

    def _on_first_rank(self, *args: Any, **kwargs: Any) -> Any:
        """Draft on the first rank only, and give the drafts to all ranks. A budget that learns from times would choose
        other drafts on each rank."""
        from vllm.distributed import get_tp_group

        ranks = get_tp_group()
        return ranks.broadcast_object(self._propose(*args, **kwargs) if ranks.is_first_rank else None)

    def _draft_beside_head(
        self,
        proposer: DasProposer,
        scheduler_output: Any,
        sampled_token_ids: list[list[int]],
        sampling_metadata: Any,
        hidden_states: Any,
        sample_hidden_states: Any,
        aux_hidden_states: Any,
        *args: Any,
        **kwargs: Any,
    ) -> list[list[int]]:
        """Replaces the drafting of vLLM's method eagle3: DasProposer drafts. vLLM still loads the head and provides its
        inputs.

        aux_hidden_states: the hidden states of each layer that the head reads, [tokens, hidden].
        """
        batch, head = self.input_batch, proposer.drafting_model
        assert isinstance(head, HeadDraft)
        proposer.attach(self)
        begins = self.vllm.query_start_loc.np[: batch.num_reqs + 1]
        ended = PolicyPass(begins, batch.num_computed_tokens_cpu[: batch.num_reqs], aux_hidden_states)
        head.keep(scheduler_output, scheduler_output.scheduled_cached_reqs.resumed_req_ids, ended)
        return proposer.propose(sampled_token_ids, batch.num_tokens_no_spec, batch.token_ids_cpu)
