"""Runner joins das's parts to vLLM's model runner: it builds them, and wraps the methods from which they are called.

No class is changed. These methods of the object are wrapped or replaced:

- init_speculator, replaced only while the runner is built: vLLM knows no drafter on the host. vLLM's own speculators,
  which run a model, stay (speculator.py).
- load_model: the sampler exists afterwards. Then rejection_sampler and sampler.sample are replaced (verifier.py).
- draft_tokens_handler: vLLM's says that every request drafted as many tokens as possible (Flights).
- add_requests, finish_requests: this runner keeps no objects of requests (das/engine/requests.py).
- sampler.sampling_states.add_request: vLLM's array has no place for seeds of 2^63 and more.
- sample: a pass is counted, and its tokens are brought to the host for the drafter. An engine without a drafter waits
  for nothing.
- execute_model: with asynchronous scheduling das waits for the tokens of the pass before and drafts here, so that
  vLLM's scheduler works while the device does; or the pass begins before that (in_flight.py). A synchronous engine
  does both once its pass is over, where vLLM calls the draft_tokens_handler.
- lora_state.make_lora_inputs: the rows of drafts take their requests' adapters too.
- execute_model: vLLM's scheduler plans rows for drafts that nobody made (Requests.shortened).
- initialize_kv_cache: vLLM's full graphs take drafts of any length (GPU).
- profile_run: vLLM's memory profile counts no rows of drafts (GPU).
- On a CPU, also the kernels (stand_in.py).
"""

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from vllm.config import CUDAGraphMode
from vllm.platforms import current_platform
from vllm.v1.worker.gpu.attn_utils import get_varlen_cudagraph_unsupported_backend
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import MAX_CHUNK_BYTES

from das.engine.patches.replace import patch, put, replaced, required
from das.engine.proposer import DasProposer
from das.engine.runner.in_flight import Flight, Flights
from das.engine.runner.late_lengths import LateLengths, why_not
from das.engine.runner.speculator import TEXT_METHODS, CoupledSpeculator, HostSpeculator, TextDrafts
from das.engine.runner.stand_in import replace_kernels
from das.engine.runner.verifier import Draws, KeyedVerifier
from das.engine.settings import DasOptions, drafts_by_das
from das.general.errors import NotInstalled
from das.models.draft_passes import DraftPasses
from das.models.self_draft import QuantizedLayers
from das.verify.layout import Batch
from das.verify.top_p import profiled_bytes


@contextmanager
def runner_under_construction(vllm_config: Any) -> Iterator[None]:
    """Inside the `with` block, a runner that is built drafts on the host, unless a model of vLLM's drafts. On a
    CPU its kernels are replaced, for good."""
    if current_platform.is_cpu():
        replace_kernels()
    from vllm.v1.worker.gpu import model_runner

    with replaced(model_runner, "init_speculator", _speculator):
        yield


def _speculator(original: Callable[..., Any], vllm_config: Any, *rest: Any) -> Any:
    method = vllm_config.speculative_config.method
    if drafts_by_das(vllm_config) or method in TEXT_METHODS:
        return HostSpeculator(vllm_config, rest[0])
    _tell_layers_of_head(vllm_config.speculative_config.draft_model_config.hf_config)
    speculator = original(vllm_config, *rest)
    if current_platform.is_cpu():
        replace_kernels()  # those of the speculator
    return speculator


def _tell_layers_of_head(head_config: Any) -> None:
    """Write the layers whose hidden states a head reads where this runner looks for them. Heads name them in their
    eagle_config, where this runner does not look. With others, oneDNN writes beyond its arrays."""
    layers = (getattr(head_config, "eagle_config", None) or {}).get("eagle_aux_hidden_state_layer_ids")
    if layers and not getattr(head_config, "eagle_aux_hidden_state_layer_ids", None):
        put(head_config, eagle_aux_hidden_state_layer_ids=layers)


class Runner:
    """The additions of das to `vllm`, vLLM's model runner: it verifies with keyed noise, drafts, and counts passes and
    tokens.

    keeps_bits: whether a request's tokens may not depend on others of its pass (das/engine/patches/gpu.py). flights:
    the way of tokens to drafter and meter, and of drafts to the next pass. draws: draw the tokens. quantized: layers
    with which the policy drafts for itself; None: it does not. draft_blocks: KV blocks into which draft passes of the
    policy write. coupled: the speculator of vLLM's that runs a model, if there is one.
    """

    def __init__(self, vllm: Any, keeps_bits: bool = True):
        self.vllm, self.keeps_bits = vllm, keeps_bits
        self.quantized: QuantizedLayers | None = None
        self.draft_blocks = range(0)
        self.coupled: CoupledSpeculator | None = None
        # Tokens of the response so far, of each request, by its index in vLLM's arrays.
        self.positions = np.zeros(vllm.max_num_reqs, np.int64)
        self.draws = Draws(vllm, self.positions, keeps_bits)
        self.flights = flights = Flights(vllm, self.positions)
        self._scheduled: Any = None  # vLLM's SchedulerOutput of the running pass
        if isinstance(vllm.speculator, HostSpeculator):
            flights.drafter = self.new_drafter()
            put(vllm, draft_tokens_handler=flights)
            patch(vllm, "initialize_kv_cache", self._initialize_kv_cache)
            patch(vllm, "execute_model", flights.execute)
        elif vllm.speculator is not None:
            self.coupled = CoupledSpeculator(vllm, self.draws, lambda: flights.meter)
        self._vllm_sample = required(vllm, "sample")
        put(vllm, sample=self._sample)
        patch(vllm, "load_model", self._load_model)
        patch(vllm, "add_requests", self._add_requests)
        patch(vllm, "finish_requests", self._finish_requests)
        patch(vllm, "profile_run", self._profile)

    def new_drafter(self, options: DasOptions | None = None) -> DasProposer | TextDrafts:
        """Returns a drafter for this engine. options: how it drafts; None: as the engine was built to."""
        config = self.vllm.vllm_config
        if options is not None or drafts_by_das(config):
            return DasProposer(config, options, self.self_drafts)
        return TextDrafts(self.vllm)

    def self_drafts(self, weights: str) -> tuple[DraftPasses, QuantizedLayers]:
        """Returns what self-drafts in a format run on. Raises NotInstalled if the engine was not built for them."""
        if self.quantized is None or self.quantized.weights != weights:
            raise NotInstalled(f"this engine has no self-drafts in {weights}: build it for the method self_draft")
        most = int(self.vllm.vllm_config.speculative_config.num_speculative_tokens)
        passes = DraftPasses(self.vllm, self.positions, self.draws.processed_rows, self.draft_blocks, most)
        return passes, self.quantized

    # ---- what vLLM's runner calls ----

    def _load_model(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        put(self.vllm.sampler, sample=self.draws.sample)
        patch(self.vllm.sampler.sampling_states, "add_request", _signed_seed)
        patch(self.vllm.lora_state, "make_lora_inputs", self._adapters)
        if self.vllm.speculative_config is not None:
            put(self.vllm, rejection_sampler=KeyedVerifier(self.draws))

    def _initialize_kv_cache(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        from vllm.v1.worker.gpu import model_runner

        with replaced(model_runner, "ModelCudaGraphManager", functools.partial(ragged_graphs, self.vllm)):
            original(*args, **kwargs)

    def decide_lengths(self) -> str:
        """Let the device decide the lengths of drafts, if it can. Returns who decides them, in words. Called once there
        is a KV cache, after vLLM's memory profile."""
        why = why_not(self.vllm)
        # A pass that waits for its drafts must be one graph: the launches of many kernels may not fit into the device's
        # queue behind the wait.
        if not why and not current_platform.is_cpu() and not drafts_in_one_graph(self.vllm):
            why = "attention or settings without full graphs for drafts of any lengths"
        if why:
            return f"by the host, because of {why}"
        self.flights.late = LateLengths(self.vllm, self.flights.settle_late)
        return "by the device, in passes without new requests"

    def _adapters(self, original: Callable[..., Any], names: list[str], *args: Any) -> tuple[Any, ...]:
        """Returns what vLLM's LoraState.make_lora_inputs returns, with each request's adapter once for each of its rows
        of logits: vLLM counts one row a request, also where it drafted."""
        of_request, *rest = original(names, *args)
        drafted = self._scheduled.scheduled_spec_decode_tokens
        return tuple(np.repeat(of_request, [1 + len(drafted.get(name, ())) for name in names])), *rest

    def _finish_requests(self, original: Callable[..., Any], scheduled: Any) -> None:
        self.flights.requests.finish(scheduled)
        original(scheduled)

    def _add_requests(self, original: Callable[..., Any], scheduled: Any) -> None:
        """Add requests."""
        added, self._scheduled = self.flights.requests.add(scheduled), scheduled
        original(scheduled)
        index = self.vllm.req_states.req_id_to_index
        for request in added:
            self.positions[index[request.name]] = len(request.output_token_ids)

    def _sample(self, hidden_states: Any, batch: Any, grammar_output: Any) -> Any:
        """Sample the tokens of a pass, and count the pass. batch: vLLM's InputBatch."""
        flights, drafter = self.flights, self.flights.drafter
        requests = [flights.requests.known[name] for name in batch.req_ids]
        self.draws.batch = of_pass = Batch.of(self.vllm, requests, batch.idx_mapping_np, self.positions)
        self.draws.is_late = flights.is_late
        # Not at rest, where drafts did not pay and the pass should take no longer than without a drafter.
        self.draws.remembers = drafter is not None and drafter.remembers and not flights.rests
        unfinished = batch.num_computed_tokens_np + batch.num_scheduled_tokens < batch.prefill_len_np
        output, num_sampled, num_rejected = self._vllm_sample(hidden_states, batch, grammar_output)
        if drafter is None and self.coupled is None:
            num_drafted, num_emitted = batch.num_draft_tokens_per_req, (~unfinished).astype(np.int64)
            drafted = [0] * len(requests) if num_drafted is None else num_drafted.tolist()
            self.positions[batch.idx_mapping_np] += num_emitted
            flights.meter.record_pass(requests, drafted, num_emitted.tolist())
            return output, num_sampled, num_rejected
        tokens, ended = flights.take_off(output, num_sampled, batch.cu_num_logits)
        remembered = self.draws.remembered(tokens.numpy()[:, 1])
        is_counted = not batch.num_draft_tokens
        flights.add(Flight(of_pass, batch.idx_mapping, is_counted, unfinished, remembered, tokens, ended))
        return output, num_sampled, num_rejected

    def _profile(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Let vLLM's profile of a pass's memory also count the rows that drafts add, das's sampler, and the weights of
        self-drafts."""
        if self.quantized is not None:
            self.quantized.make()
        original(*args, **kwargs)
        runner = self.vllm
        rows = min(runner.max_num_tokens, runner.max_num_reqs * (1 + runner.num_speculative_steps))
        copied = min(
            MAX_CHUNK_BYTES, 4 * rows * runner.vocab_size
        )  # vLLM's float32 logits of the rows that it verifies at once
        size = copied + profiled_bytes(rows, runner.vocab_size, runner.model_config.dtype)
        torch.empty(size, dtype=torch.uint8, device=runner.device)  # freed at once, because only the peak counts


def ragged_graphs(vllm: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns vLLM's manager of graphs. Its full graphs replay passes in which each request has any number of rows from
    1 to k + 1, if the attention can do so. vLLM's usual ones replay those in which each has k + 1. vllm: its runner."""
    return original(*args, **kwargs | {"varlen_decode": _attends_raggedly(vllm)})


def _attends_raggedly(vllm: Any) -> bool:
    return get_varlen_cudagraph_unsupported_backend(vllm.attn_groups, vllm.vllm_config, vllm.decode_query_len) is None


def drafts_in_one_graph(vllm: Any) -> bool:
    """Whether passes with drafts and without prompts are one graph each. vllm: its runner, with its graphs' manager."""
    full: bool = vllm.cudagraph_manager.cudagraph_mode.decode_mode() == CUDAGraphMode.FULL
    return full and _attends_raggedly(vllm)


def _signed_seed(original: Callable[..., Any], index: int, params: Any) -> Any:
    """das takes seeds of any 64 bits, with a sign or without; vLLM's array takes those with a sign."""
    if params.seed is not None and params.seed >= 2**63:
        params = copy.copy(params)
        params.seed -= 2**64
    return original(index, params)
