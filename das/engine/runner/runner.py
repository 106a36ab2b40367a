"""Make vLLM's model runner sample with keyed noise, draft with das, and count its passes and tokens.

One object, Runner, holds what das adds. These attributes of vLLM's runner are replaced; no class is changed:

- init_speculator, replaced only while the runner is built: vLLM knows no drafter on the host. vLLM's own speculators,
  which run a model, stay (speculator.py).
- load_model: the sampler exists afterwards. Then rejection_sampler, sampler.sample (verifier.py) and
  draft_tokens_handler (speculator.py) are replaced.
- add_requests, finish_requests: this runner keeps no objects of requests (requests.py). Requests without a seed get
  das's seed when they are added.
- sampler.sampling_states.add_request: vLLM's array has no place for seeds of 2^63 and more.
- sample: a pass is counted, and its tokens are brought to the host for the drafter. An engine without a drafter waits
  for nothing.
- execute_model, with asynchronous scheduling: das waits for the tokens of the pass before and drafts here, and not in
  sample, so that vLLM's scheduler works while the device does; or the pass begins before that (in_flight.py).
- lora_state.make_lora_inputs: the rows of drafts take their requests' adapters too.
- execute_model: vLLM's scheduler plans rows for drafts that nobody made (Requests.shortened).
- initialize_kv_cache: vLLM's full graphs take drafts of any length (GPU).
- profile_run: vLLM's memory profile counts no rows of drafts (GPU).
- On a CPU, also the kernels (stand_in.py).
"""

import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from vllm.config import CUDAGraphMode
from vllm.distributed import get_tp_group
from vllm.platforms import current_platform
from vllm.v1.worker.gpu.attn_utils import get_varlen_cudagraph_unsupported_backend
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import MAX_CHUNK_BYTES

from das.engine.engine_config import drafts_by_das
from das.engine.patches.replace import patch, replaced, required
from das.engine.proposer import DasProposer
from das.engine.rollouts.meter import RolloutMeter
from das.engine.runner.draft_passes import DraftPasses
from das.engine.runner.in_flight import Flight, Flights
from das.engine.runner.requests import Batch, KnownRequest, Requests
from das.engine.runner.speculator import CoupledSpeculator, HostSpeculator, TrueLengths, filled_up
from das.engine.runner.stand_in import replace_kernels
from das.engine.runner.text_drafts import TEXT_METHODS, TextDrafts
from das.engine.runner.verifier import Draws, KeyedVerifier
from das.models.self_draft import QuantizedLayers
from das.verify.forced import ForcedSampler
from das.verify.sampler import KeyedSampler
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
        head_config.eagle_aux_hidden_state_layer_ids = layers


class Runner:
    """The additions of das to `vllm`, vLLM's model runner: it verifies with keyed noise, drafts, and counts passes and
    tokens.

    keeps_bits: whether a request's tokens may not depend on others of its pass (das/engine/patches/gpu.py). meter: of
    the running rollout. weights_version: of the policy; it grows with every sync. quantized: the layers with which the
    policy drafts for itself; None: it does not. draft_blocks: KV blocks into which draft passes of the policy write.
    drafter: das's proposer or one of vLLM's; None if nothing drafts. It can be replaced by another. flights: the passes
    whose tokens it does not know yet. passes_ended: when the passes whose tokens it gets ended, in seconds; more than
    one only if nobody drafted in them. emitted: the tokens that each row emitted in them. is_warming_up: whether vLLM
    runs made-up requests, so that kernels are compiled.
    """

    def __init__(self, vllm: Any, keeps_bits: bool = True):
        self.vllm, self.keeps_bits = vllm, keeps_bits
        config = vllm.vllm_config
        self.meter = RolloutMeter()
        self.sampler: KeyedSampler | ForcedSampler = KeyedSampler()
        self.weights_version = 0
        self.quantized: QuantizedLayers | None = None
        self.draft_blocks = range(0)
        self.drafter: Any = vllm.speculator
        self.coupled: CoupledSpeculator | None = None
        self.input_batch = Batch()
        # Tokens of the response so far, of each request, by its index in vLLM's arrays.
        self.positions = np.zeros(vllm.max_num_reqs, np.int64)
        self.rows = np.zeros(0, np.int64)  # for each row of the pass, this index of its request
        self.unfinished = np.zeros(0, np.bool_)
        self._scheduled: Any = None  # vLLM's SchedulerOutput of the running pass
        self._known = Requests()
        self.emitted: list[list[int]] = []
        self._lengths = TrueLengths()
        self.flights = Flights(self)
        self.passes_ended: list[float] = []
        self.is_warming_up = False
        if isinstance(vllm.speculator, HostSpeculator):
            self.drafter = DasProposer(config) if drafts_by_das(config) else TextDrafts(config)
            vllm.speculator.das_runner = self
            vllm.draft_tokens_handler = self._lengths
            patch(vllm, "initialize_kv_cache", self._initialize_kv_cache)
            patch(vllm, "execute_model", self.flights.execute)
        elif vllm.speculator is not None:
            self.coupled = CoupledSpeculator(self)
        self._vllm_sample = required(vllm, "sample")
        vllm.sample = self._sample
        patch(vllm, "load_model", self._load_model)
        patch(vllm, "add_requests", self._add_requests)
        patch(vllm, "finish_requests", self._finish_requests)
        patch(vllm, "profile_run", self._profile)

    @property
    def requests(self) -> Mapping[str, KnownRequest]:
        """Each request that vLLM's runner knows, by request id."""
        return self._known.known

    def draft_passes(self, max_tokens: int) -> DraftPasses:
        """Returns the object with which the policy drafts for itself. max_tokens: the most positions that its passes
        compute for a request between two target passes."""
        return DraftPasses(self, max_tokens)

    def block_tables(self) -> np.ndarray:
        """Returns the KV blocks of each request of the batch, int32 [requests, blocks], on the host. On a GPU this
        waits for the device."""
        tables = self.vllm.block_tables.block_tables[0].gpu[torch.from_numpy(self.rows)]
        on_host: np.ndarray = tables.cpu().numpy()
        return on_host

    def texts(self) -> np.ndarray:
        """Returns the token ids of each request of the batch, prompt and response, int32 [requests, max_model_len], on
        the host. On a GPU this waits for the device."""
        texts: np.ndarray = self.vllm.req_states.all_token_ids.gpu[torch.from_numpy(self.rows)].cpu().numpy()
        return texts

    def seeds_of(self, rows: np.ndarray) -> np.ndarray:
        """See RunningBatch."""
        seeds: np.ndarray = self.vllm.sampler.sampling_states.seeds.np[self.rows[rows]]
        return seeds

    def processed(self, logits: torch.Tensor, rows: np.ndarray, num_drafted: np.ndarray) -> torch.Tensor:
        """See RunningBatch."""
        owner, device = self.rows[rows], logits.device
        request = torch.from_numpy(owner).to(device)
        lengths = self.input_batch.num_tokens_no_spec[rows] + num_drafted
        pos = torch.from_numpy(lengths - 1).to(device)
        none = torch.zeros(len(owner), dtype=torch.int32, device=device)
        return self.draws.processed(logits, request, request, owner, pos, none, none, lengths)

    def draft(self, planned: Mapping[str, int] | None = None) -> list[list[int]]:
        """Draft after a pass, and measure the time of drafting. Returns the drafted token ids of each row.

        planned: how many tokens the next pass verifies for each request, if it was planned before; only DasProposer
        knows how to keep to that.
        """
        start, batch, ranks = time.perf_counter(), self.input_batch, get_tp_group()
        self.drafter.attach(self)
        # On the first rank only: a budget that learns from times would choose other drafts on each rank.
        as_planned = () if planned is None else (planned,)
        own = self.drafter.propose(self.emitted, batch.num_tokens_no_spec, *as_planned) if ranks.is_first_rank else None
        drafts: list[list[int]] = ranks.broadcast_object(own)
        self._lengths.drafts = dict(zip(batch.req_ids, drafts, strict=True))
        self._known.num_drafted.update(zip(batch.req_ids, map(len, drafts), strict=True))
        self.meter.draft_s += time.perf_counter() - start
        return drafts

    def on_device(self, drafts: list[list[int]]) -> torch.Tensor:
        """Returns drafts as vLLM's runner takes them, and measures the time."""
        start = time.perf_counter()
        tokens = filled_up(drafts, self.vllm.num_speculative_steps, self.vllm.device)
        self.meter.draft_s += time.perf_counter() - start
        return tokens

    # ---- what vLLM's runner calls ----

    def _load_model(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        self.draws = draws = Draws(self)
        self.vllm.sampler.sample = draws.sample
        patch(self.vllm.sampler.sampling_states, "add_request", _signed_seed)
        patch(self.vllm.lora_state, "make_lora_inputs", self._adapters)
        if self.vllm.speculative_config is not None:
            self.vllm.rejection_sampler = KeyedVerifier(draws)

    def _initialize_kv_cache(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        from vllm.v1.worker.gpu import model_runner

        with replaced(model_runner, "ModelCudaGraphManager", functools.partial(ragged_graphs, self.vllm)):
            original(*args, **kwargs)
        # A pass that waits for its drafts must be one graph: the launches of many kernels may not fit into the device's
        # queue behind the wait.
        if self.drafts_later and not current_platform.is_cpu() and drafts_in_one_graph(self.vllm):
            from das.engine.runner.late_drafts import LateDrafts

            self.flights.late = LateDrafts(self.vllm.req_states.draft_tokens)

    def _adapters(self, original: Callable[..., Any], names: list[str], *args: Any) -> tuple[Any, ...]:
        """Returns what vLLM's LoraState.make_lora_inputs returns, with each request's adapter once for each of its rows
        of logits: vLLM counts one row a request, also where it drafted."""
        of_request, *rest = original(names, *args)
        drafted = self._scheduled.scheduled_spec_decode_tokens
        return tuple(np.repeat(of_request, [1 + len(drafted.get(name, ())) for name in names])), *rest

    def shortened(self, scheduled: Any, planned: Mapping[str, int] | None = None) -> Any:
        """Returns the plan of a pass without the rows that nobody drafted. scheduled: vLLM's SchedulerOutput. planned:
        how many tokens are verified for each request; None: as many as were drafted."""
        start, num_tokens = time.perf_counter(), scheduled.total_num_scheduled_tokens
        if planned is not None:
            self._known.num_drafted = dict(planned)
        scheduled = self._known.shortened(scheduled)
        self.meter.undrafted_rows += num_tokens - scheduled.total_num_scheduled_tokens
        self.meter.draft_s += time.perf_counter() - start
        return scheduled

    def nobody_drafts(self, names: list[str]) -> None:
        """Note that the requests of the next pass, of these ids, have no drafts."""
        self._known.num_drafted.clear()
        self._lengths.drafts = dict.fromkeys(names, ())

    @property
    def drafts_later(self) -> bool:
        """Whether drafting waits for the next pass: with asynchronous scheduling, if das drafts from texts."""
        return (
            self.vllm.scheduler_config.async_scheduling
            and isinstance(self.vllm.speculator, HostSpeculator)
            and isinstance(self.drafter, DasProposer)
            and self.drafter.drafting_model is None
        )

    def _finish_requests(self, original: Callable[..., Any], scheduled: Any) -> None:
        self._known.finish(scheduled)
        original(scheduled)

    def _add_requests(self, original: Callable[..., Any], scheduled: Any) -> None:
        """Add requests."""
        names, self._scheduled = self._known.add(scheduled), scheduled
        original(scheduled)
        if names:
            rows = [self.vllm.req_states.req_id_to_index[name] for name in names]
            self.positions[rows] = [len(self.requests[name].output_token_ids) for name in names]

    def _sample(self, hidden_states: Any, batch: Any, grammar_output: Any) -> Any:
        """Sample the tokens of a pass, and count the pass. batch: vLLM's InputBatch."""
        self.rows = rows = batch.idx_mapping_np
        names, prompts = batch.req_ids, self.vllm.req_states.prompt_len.np[rows].astype(np.int64)
        self.input_batch = Batch(
            names, prompts + self.positions[rows], prompts, self.vllm.sampler.sampling_states.temperature.np[rows]
        )
        self.unfinished = batch.num_computed_tokens_np + batch.num_scheduled_tokens < batch.prefill_len_np
        # Not at rest, where drafts did not pay and the pass should take no longer than without a drafter.
        self.sampler.remembers = getattr(self.drafter, "remembers", False) and not self.flights.rests
        output, num_sampled, num_rejected = self._vllm_sample(hidden_states, batch, grammar_output)
        num_drafted = batch.num_draft_tokens_per_req
        drafted = [0] * len(names) if num_drafted is None else num_drafted.tolist()
        if self.drafter is None:
            num_emitted = (~self.unfinished).astype(np.int64)
            self.positions[rows] += num_emitted
            self.input_batch.num_tokens_no_spec += num_emitted
            self.meter.record_pass(names, drafted, num_emitted.tolist())
            return output, num_sampled, num_rejected
        tokens, ended = self.flights.take_off(output, num_sampled)
        flight = Flight(
            self.input_batch, rows, batch.idx_mapping, drafted, self.unfinished, self.sampler.remembered, tokens, ended
        )
        if flight.is_counted:
            self.positions[rows] += ~self.unfinished
        if self.drafts_later:
            self.flights.add(flight)
        else:
            self.flights.land(flight)
            self.book(flight)
        return output, num_sampled, num_rejected

    def book(self, flight: Flight) -> None:
        """Count the tokens of a flight that has landed. Afterwards `input_batch`, `rows` and `emitted` are those of
        this flight."""
        self.passes_ended = flight.passes_ended
        start = time.perf_counter()
        self.input_batch, self.rows, self.unfinished = flight.batch, flight.rows, flight.unfinished
        self.sampler.remembered = flight.remembered
        num_emitted = flight.tokens[:, 0].numpy()
        known = self._known.known
        # vLLM has no more of a request that ended while the pass was planned.
        self.emitted = [
            row[1 : 1 + row[0]] if name in known else []
            for name, row in zip(flight.batch.req_ids, flight.tokens.tolist(), strict=True)
        ]
        for name, new in zip(flight.batch.req_ids, self.emitted, strict=True):
            if new:
                known[name].output_token_ids += new
        if not flight.is_counted:
            self.positions[flight.rows] += num_emitted
        flight.batch.num_tokens_no_spec += num_emitted
        counts = [len(new) // len(self.passes_ended) for new in self.emitted]
        for ended in self.passes_ended:
            self.meter.record_pass(flight.batch.req_ids, flight.num_drafted, counts, ended, known)
        self.meter.draft_s += time.perf_counter() - start

    def _profile(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Let vLLM's profile of a pass's memory also count the rows that drafts add, das's sampler, and the weights of
        self-drafts."""
        if self.quantized is not None:
            self.quantized.make(self.weights_version)
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
