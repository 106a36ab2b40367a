"""The verifier: keyed sampling on the target's logits, the same for passes with and without drafts.

A pass returns one row of logits for the next token of each request, and one more row after each drafted token. Every
row is treated as an ordinary decode row: the same masks, the same temperature, the same noise(seed, position). A
drafted token is accepted if and only if it equals the token sampled on its row. The emitted tokens therefore never
depend on the draft (exactness level 2, docs/exactness.md).
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm.v1.sample.ops.penalties import apply_all_penalties
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from das.engine.host_copies import on_device
from das.engine.layout import Layout, RowLayout
from das.engine.noise import (
    REJECTED,
    accept_inputs,
    device_accept,
    device_argmax,
    keyed_argmax,
    keyed_verify,
    keyed_walk,
    noise_inputs,
    splitmix64,
)
from das.engine.seeds import DefaultSeeds

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

GREEDY_BELOW = 1e-5  # temperature below which a request takes the argmax; vLLM uses the same threshold
# A pass is sampled in pieces, so that it takes at most so many bytes beside vLLM's own logits, whatever the batch.
SAMPLER_BYTES = 2**30
# Bytes for each logit of a piece, counted by tests/engine/test_pieces.py: a copy as float32, another for log-probs or
# noise, and a mask; where top-k or top-p is asked for also what sorting takes.
CELL_BYTES, SORTED_CELL_BYTES = 24, 48
NOTHING: Mapping[str, torch.Tensor] = MappingProxyType({})


class UnsupportedSampling(ValueError):
    """A request uses a sampling feature that keyed sampling cannot combine with drafts."""


@dataclass(frozen=True, slots=True)
class _Seeded:
    """A request's seed, and what it was drawn for."""

    state: Any  # vLLM's CachedRequestState
    params: Any
    turn: int  # of a streaming session; 0 is the first
    seed: int


@dataclass(frozen=True, slots=True)
class _Pass:
    """What the pieces of a pass share. All arrays are of the batch's requests."""

    metadata: SamplingMetadata
    num_requests: int
    temperature: np.ndarray  # float32
    greedy: np.ndarray | None  # bool; None: no request is
    seeds: np.ndarray  # int64
    positions: np.ndarray  # of each request's next token, int64
    forbidden: torch.Tensor | None  # bool [requests, vocab]
    width: int  # the most tokens that a request may emit


def max_piece_rows(metadata: SamplingMetadata, vocab: int) -> int:
    """How many rows of logits are sampled at once, so that they take at most SAMPLER_BYTES."""
    sorts = metadata.top_k is not None or metadata.top_p is not None
    return max(1, SAMPLER_BYTES // (vocab * (SORTED_CELL_BYTES if sorts else CELL_BYTES)))


def profiled_bytes(rows: int, vocab: int, dtype: torch.dtype) -> int:
    """The most memory that sampling a pass of so many rows takes: vLLM's logits, of the model's dtype, and ours."""
    return rows * vocab * dtype.itemsize + min(SAMPLER_BYTES, rows * vocab * SORTED_CELL_BYTES)


def _has_custom_processors(metadata: SamplingMetadata) -> bool:
    """Whether a processor of somebody else's, which knows whole batches only, changes logits."""
    own = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    return not all(isinstance(processor, own) for processor in metadata.logitsprocs.all)


def applied_temperature(temperature: np.ndarray, greedy: np.ndarray | None) -> np.ndarray | None:
    """What logits are divided by: 1 for greedy requests. None where all is 1. Both arrays are [requests]."""
    if greedy is not None:
        temperature = np.where(greedy, np.float32(1.0), temperature)
    return temperature if np.any(temperature != 1.0) else None


class KeyedSampler:
    """Replaces vLLM's sampler and rejection sampler in one model runner.

    engine_seed, engine_rank: of DefaultSeeds, for requests that bring no seed. logprobs_mode: vLLM's option of that
    name, which says whether raw or processed values are reported, and whether as log-probs or as logits.
    """

    def __init__(self, engine_seed: int, logprobs_mode: str, engine_rank: int = 0):
        self.default_seeds = DefaultSeeds(engine_seed, engine_rank)
        self.logprobs_mode = logprobs_mode
        self._seeded: dict[str, _Seeded] = {}  # by request id
        self._seeded_for: Any = None  # the batch's metadata that _batch_seeds belongs to; vLLM makes it anew with
        self._batch_seeds = np.empty(0, np.int64)  # every change of the batch
        self._masked_for: Any = None  # the same, of _forbidden
        self._forbidden = torch.empty(0, dtype=torch.bool)

    def sample(
        self, runner: "GPUModelRunner", logits: torch.Tensor, drafts: SpecDecodeMetadata | None
    ) -> SamplerOutput:
        """Sample every row of a pass, and accept each request's drafted tokens up to the first that differs.

        logits: [rows, vocab]; rows is the number of live requests without drafts, sum(num_drafted + 1) with them.
        Returns the emitted token ids, int32 [requests, max(num_drafted) + 1], padded with REJECTED, and their log-probs
        where a request asks for them. Raises UnsupportedSampling.
        """
        batch = runner.input_batch
        num_requests = batch.num_reqs
        layout = None if drafts is None or not any(drafts.num_draft_tokens) else Layout.of(drafts)
        temperature = batch.temperature_cpu[:num_requests]
        positions = np.subtract(
            batch.num_tokens_no_spec[:num_requests],
            batch.num_prompt_tokens[:num_requests],
            dtype=np.int64,
            casting="unsafe",
        )
        work = _Pass(
            batch.sampling_metadata,
            num_requests,
            temperature,
            None if batch.sampling_metadata.all_random else temperature < GREEDY_BELOW,
            self.request_seeds(runner),
            positions,
            self.forbidden_tokens(runner, logits),
            1 if layout is None else layout.width(),
        )
        max_rows = max_piece_rows(batch.sampling_metadata, logits.shape[-1])
        if len(logits) <= max_rows or (layout is None and _has_custom_processors(batch.sampling_metadata)):
            emitted, logprobs = self._sample_piece(work, logits, layout)
            return SamplerOutput(sampled_token_ids=emitted, logprobs_tensors=logprobs)
        if layout is None:
            layout = Layout(np.zeros(num_requests, np.int64), torch.empty(0, dtype=torch.int32, device=logits.device))
        sampled, first_row = [], 0
        for piece in layout.pieces(max_rows):
            sampled.append(self._sample_piece(work, logits[first_row : first_row + piece.num_rows], piece))
            first_row += piece.num_rows
        emitted = torch.cat([tokens for tokens, _ in sampled])
        parts = [logprobs for _, logprobs in sampled if logprobs is not None]
        whole = (torch.cat([part[i] for part in parts]) for i in range(3)) if parts else None
        return SamplerOutput(
            sampled_token_ids=emitted, logprobs_tensors=None if whole is None else LogprobsTensors(*whole)
        )

    def _sample_piece(
        self, work: "_Pass", logits: torch.Tensor, layout: Layout | None
    ) -> tuple[torch.Tensor, LogprobsTensors | None]:
        """`sample` for a run of requests. logits: of their rows, changed in place. layout: None for one row each."""
        metadata = work.metadata
        first = 0 if layout is None else layout.first_request
        own = slice(first, work.num_requests if layout is None else first + len(layout.num_drafted))
        seeds, positions = work.seeds[own], work.positions[own]
        greedy = None if work.greedy is None else work.greedy[own]
        inputs: dict[str, torch.Tensor] = {}  # what the device needs of the host, in one copy
        if logits.device.type != "cpu":
            inputs = on_device(logits.device, self._inputs(work, layout, seeds, positions, greedy))

        # Processing happens in place. A copy is kept only where raw values must be reported.
        logits = logits.to(torch.float32)
        wants_logprobs = metadata.max_num_logprobs is not None or bool(metadata.logprob_token_ids)
        raw = logits.clone() if wants_logprobs and self.logprobs_mode.startswith("raw") else None
        rows = Rows(metadata, work.num_requests, layout, work.forbidden, inputs)
        logits = rows.apply_before_temperature(logits)
        if not metadata.all_greedy:
            logits = rows.apply_after_temperature(logits, work.temperature, work.greedy)

        cells = None  # row of each emitted token
        if layout is None:
            tokens = device_argmax(logits, inputs) if inputs else keyed_argmax(logits, seeds, positions, greedy)
            emitted = tokens[:, None].to(torch.int32)
        elif layout.parents is None:
            if inputs:
                emitted = device_accept(device_argmax(logits, inputs), layout.draft_tokens, inputs)
            else:
                emitted = keyed_verify(
                    logits, layout.num_drafted, layout.draft_tokens, seeds, positions, greedy, work.width
                )
            cells = layout.cells(work.width) if wants_logprobs else None
        else:
            emitted, cells = keyed_walk(
                logits, layout.num_drafted, layout.draft_tokens, layout.parents, layout.offset, seeds, positions,
                greedy, work.width,
            )  # fmt: skip
        logprobs = None
        if wants_logprobs:
            logprobs = self._logprobs(metadata, logits if raw is None else raw, emitted, cells)
        return emitted, logprobs

    def _inputs(
        self,
        work: "_Pass",
        layout: Layout | None,
        seeds: np.ndarray,
        positions: np.ndarray,
        greedy: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        """What sampling a piece needs on the device, for `on_device`. seeds, positions, greedy: of its requests."""
        temperature = applied_temperature(work.temperature, work.greedy)
        if layout is None:
            inputs = noise_inputs(seeds, positions, greedy)
            return inputs if temperature is None else {**inputs, "temperature": temperature}
        owner = layout.own_request
        inputs = {"owner": layout.owner}
        if temperature is not None:
            inputs["temperature"] = temperature[layout.owner]
        if layout.parents is None:
            own_greedy = None if greedy is None else greedy[owner]
            inputs |= noise_inputs(seeds[owner], positions[owner] + layout.offset, own_greedy)
            inputs |= accept_inputs(layout.num_drafted, work.width)
        return inputs

    def request_seeds(self, runner: "GPUModelRunner") -> np.ndarray:
        """Seeds of the batch's requests in batch order, int64 [requests]; rebuilt only when the batch has changed."""
        metadata = runner.input_batch.sampling_metadata
        if self._seeded_for is not metadata:
            seeded = {}
            for name, state in runner.requests.items():
                if state.sampling_params is not None:
                    seeded[name] = self._seed(self._seeded.get(name), state)
            self._seeded, self._seeded_for = seeded, metadata
            # Seeds may be any 64 bits, with a sign or without.
            seeds = [seeded[name].seed & 0xFFFFFFFFFFFFFFFF for name in runner.input_batch.req_ids]
            self._batch_seeds = np.array(seeds, np.uint64).view(np.int64)
        return self._batch_seeds

    def _seed(self, before: "_Seeded | None", state: Any) -> "_Seeded":
        """The seed of a request. before: what its id stood for in the last batch; None for a new id.

        An id may come to stand for another request. In a streaming session the same request gets further input, and its
        positions begin at 0 again; each such turn has noise of its own.
        """
        params, turn = state.sampling_params, 0
        if before is not None and before.state is state:
            if before.params is params:
                return before
            turn = before.turn + 1
        if params.seed is None:
            seed = self.default_seeds.draw(state.prompt_token_ids or ())
        elif turn:
            mixed = splitmix64(splitmix64(np.array([params.seed & 0xFFFFFFFFFFFFFFFF], np.uint64)) ^ np.uint64(turn))
            seed = int(mixed[0])
        else:
            seed = params.seed
        return _Seeded(state, params, turn, seed)

    def forbidden_tokens(self, runner: "GPUModelRunner", logits: torch.Tensor) -> torch.Tensor | None:
        """The tokens that allowed_token_ids forbid each request, bool [requests, vocab]; None if they forbid nothing.

        vLLM's metadata has such a mask too. Up to vLLM 0.27 its rows may hold what a request that left was forbidden,
        so that tokens depend on the batch. Here it is made from the requests, anew only when the batch has changed.
        """
        batch = runner.input_batch
        if batch.sampling_metadata.allowed_token_ids_mask is None:
            return None
        if self._masked_for is not batch.sampling_metadata:
            forbidden = torch.zeros(batch.num_reqs, logits.shape[-1], dtype=torch.bool)
            for row, name in enumerate(batch.req_ids):
                params = runner.requests[name].sampling_params
                if params is not None and params.allowed_token_ids:
                    forbidden[row] = True
                    forbidden[row, params.allowed_token_ids] = False
            self._forbidden, self._masked_for = forbidden.to(logits.device), batch.sampling_metadata
        return self._forbidden

    def _logprobs(
        self, metadata: SamplingMetadata, values: torch.Tensor, emitted: torch.Tensor, cells: np.ndarray | None
    ) -> LogprobsTensors:
        """Log-probs of the emitted tokens in vLLM's own layout: one cell for each of [requests * (longest draft + 1)].

        values: logits [rows, vocab]. emitted: [requests, longest draft + 1]. cells: the row of each of these tokens;
        None in a pass without drafts.
        """
        if metadata.logprob_token_ids:
            raise UnsupportedSampling(
                "logprob_token_ids cannot be combined with keyed sampling: ask for logprobs=N instead"
            )
        num_logprobs = metadata.max_num_logprobs
        assert num_logprobs is not None
        tokens = emitted.reshape(-1, 1)
        if cells is not None:
            cells = cells.reshape(-1)
            every_cell = num_logprobs == -1
            # On a GPU this is the one time that sampling waits for it.
            used = np.arange(len(cells)) if every_cell else (tokens[:, 0] != REJECTED).cpu().numpy().nonzero()[0]
            needed = {"of_used": cells[used], "used": used}
            if tokens.device != values.device:  # drafts that branch are walked on the host
                needed["tokens"] = tokens.numpy()[used]
            rows = on_device(values.device, needed)
            values = values[rows["of_used"]]
        if not self.logprobs_mode.endswith("logits"):
            values = values.log_softmax(dim=-1)
        if num_logprobs == -1:
            return LogprobsTensors(torch.empty(0), values, torch.empty(0))
        if cells is not None:
            tokens = rows["tokens"] if "tokens" in rows else tokens[rows["used"]]
        listed_tokens = tokens.to(torch.int64)
        listed = values.gather(-1, listed_tokens)
        ranks = (values >= listed).sum(dim=-1)
        if num_logprobs > 0:
            top, top_tokens = values.topk(num_logprobs, dim=-1)
            listed, listed_tokens = torch.cat((listed, top), dim=1), torch.cat((listed_tokens, top_tokens), dim=1)
        listed_tokens = listed_tokens.to(torch.int32)
        if cells is not None:  # cells without an emitted token stay 0, and vLLM drops them
            listed_tokens, listed, ranks = (
                compact.new_zeros((len(cells), *compact.shape[1:])).index_copy_(0, rows["used"].long(), compact)
                for compact in (listed_tokens, listed, ranks)
            )
        return LogprobsTensors(listed_tokens, listed, ranks)


class Rows:
    """Applies each request's sampling parameters to all of its rows.

    To a row, the drafted tokens before it count as generated output. layout: what rows there are, None for one row of
    each request and no drafts.
    forbidden: tokens that requests must not emit, bool [requests, vocab]; None if there are none.
    inputs: what is on the device already of each row's `owner` and `temperature`, [rows].
    """

    def __init__(
        self,
        metadata: SamplingMetadata,
        num_requests: int,
        layout: RowLayout | None,
        forbidden: torch.Tensor | None,
        inputs: Mapping[str, torch.Tensor] = NOTHING,
    ):
        self._inputs = inputs
        self.metadata = metadata
        self.num_requests = num_requests
        self.layout = layout
        self.forbidden = forbidden

    @functools.cached_property
    def owner(self) -> Sequence[int]:
        """Index of the request to which each row belongs."""
        return range(self.num_requests) if self.layout is None else self.layout.owner.tolist()

    def _expand(self, per_request: torch.Tensor) -> torch.Tensor:
        """Repeat each request's values for all of its rows: [requests, ...] -> [rows, ...]."""
        if self.layout is None:
            return per_request
        owner = self._inputs.get("owner")
        if owner is None:
            owner = on_device(per_request.device, {"owner": self.layout.owner})["owner"]
        return per_request[owner]

    def _temperature(self, divisor: np.ndarray, device: torch.device) -> torch.Tensor:
        """The temperature of each row, on the device. divisor: of each request."""
        if "temperature" in self._inputs:
            return self._inputs["temperature"]
        per_row = divisor if self.layout is None else divisor[self.layout.owner]
        return on_device(device, {"temperature": per_row})["temperature"]

    def _outputs(self) -> list[list[int]]:
        """The output tokens of each row: the request's, followed by the drafted tokens before the row."""
        outputs = self.metadata.output_token_ids
        if self.layout is None:
            return outputs
        return [[*outputs[request], *before] for request, before in zip(self.owner, self.layout.before(), strict=True)]

    def apply_before_temperature(self, logits: torch.Tensor) -> torch.Tensor:
        """Apply what may change an argmax: allowed tokens, bad words, minimum length, bias, penalties (vLLM's order).

        Raises UnsupportedSampling.
        """
        metadata = self.metadata
        holder = metadata.thinking_budget_state_holder
        if holder is not None and holder.has_tracked_requests():
            raise UnsupportedSampling("a thinking token budget cannot be combined with keyed sampling: leave it unset")
        if self.forbidden is not None:
            logits.masked_fill_(self._expand(self.forbidden), float("-inf"))
        if metadata.bad_words_token_ids:
            words = {
                row: metadata.bad_words_token_ids[request]
                for row, request in enumerate(self.owner)
                if request in metadata.bad_words_token_ids
            }
            apply_bad_words(logits, words, self._outputs())
        for processor in metadata.logitsprocs.non_argmax_invariant:
            if isinstance(processor, MinTokensLogitsProcessor):
                self._min_tokens(logits, processor)
            elif isinstance(processor, LogitBiasLogitsProcessor):
                self._logit_bias(logits, processor)
            else:
                self._refuse_with_drafts(processor)
                logits = processor.apply(logits)
        if not metadata.no_penalties:
            assert metadata.prompt_token_ids is not None
            apply_all_penalties(
                logits,
                self._expand(metadata.prompt_token_ids),
                self._expand(metadata.presence_penalties),
                self._expand(metadata.frequency_penalties),
                self._expand(metadata.repetition_penalties),
                self._outputs(),
            )
        return logits

    def apply_after_temperature(
        self, logits: torch.Tensor, temperature: np.ndarray, greedy: np.ndarray | None
    ) -> torch.Tensor:
        """Divide by the temperature, then apply what only restricts sampling: min-p, top-k, top-p.

        temperature: float32 [requests]. greedy: bool [requests], the requests whose temperature is not applied; None
        means that no request is greedy. Raises UnsupportedSampling.
        """
        divisor = applied_temperature(temperature, greedy)
        if divisor is not None:
            logits = logits.div_(self._temperature(divisor, logits.device)[:, None])
        for processor in self.metadata.logitsprocs.argmax_invariant:
            if isinstance(processor, MinPLogitsProcessor):
                if processor.min_p_count:
                    probabilities = logits.softmax(dim=-1)
                    floor = probabilities.amax(dim=-1, keepdim=True) * self._expand(processor.min_p)
                    logits.masked_fill_(probabilities < floor, float("-inf"))
            else:
                self._refuse_with_drafts(processor)
                logits = processor.apply(logits)
        top_k, top_p = self.metadata.top_k, self.metadata.top_p
        if top_k is None and top_p is None:
            return logits
        if top_p is not None:
            # A request with top-p 1.0 must keep tokens whose probability underflows, also beside one with lower top-p.
            top_p = torch.where(top_p >= 1.0, 2.0, top_p)
        # Always use the sorting form: vLLM picks its faster forms by batch size, and they break ties differently.
        return apply_top_k_top_p_pytorch(
            logits,
            None if top_k is None else self._expand(top_k),
            None if top_p is None else self._expand(top_p),
        )

    def _refuse_with_drafts(self, processor: Any) -> None:
        """Raise UnsupportedSampling for a processor that knows requests only, in a pass with several rows a request."""
        if self.layout is not None:
            raise UnsupportedSampling(
                f"custom logits processor {type(processor).__name__} cannot be combined with drafts: use budget=none"
            )

    def _logit_bias(self, logits: torch.Tensor, processor: LogitBiasLogitsProcessor) -> None:
        """Add each request's token biases to all of its rows, in place."""
        cells = [
            (row, token, bias)
            for row, request in self._rows_of(processor.biases)
            for token, bias in processor.biases[request].items()
        ]
        if cells:
            rows, tokens, biases = zip(*cells, strict=True)
            cell_indices = torch.tensor([rows, tokens], device=logits.device)
            logits[cell_indices[0], cell_indices[1]] += torch.tensor(biases, dtype=torch.float32, device=logits.device)

    def _min_tokens(self, logits: torch.Tensor, processor: MinTokensLogitsProcessor) -> None:
        """Mask the stop tokens, in place, on rows that lie before their request's minimum length.

        A row stays unmasked where its grammar would otherwise allow no token at all.
        """
        rows: list[int] = []
        tokens: list[int] = []
        with_grammar: set[int] = set()  # rows whose grammar may leave a stop token as the only choice
        for row, request in self._rows_of(processor.min_toks):
            minimum, output, stop_tokens, *grammar = processor.min_toks[request]
            num_drafted_before = 0 if self.layout is None else int(self.layout.offset[row])
            if stop_tokens and len(output) + num_drafted_before < minimum:
                rows += [row] * len(stop_tokens)
                tokens += sorted(stop_tokens)
                if any(grammar):
                    with_grammar.add(row)
        if not rows:
            return
        cell_indices = torch.tensor([rows, tokens], device=logits.device)
        unmasked = {row: logits[row].clone() for row in with_grammar}
        logits[cell_indices[0], cell_indices[1]] = float("-inf")
        for row, before_masking in unmasked.items():
            if torch.isneginf(logits[row]).all():
                logits[row] = before_masking

    def _rows_of(self, requests: dict[int, Any]) -> list[tuple[int, int]]:
        """(row, request) of every row whose request is a key of `requests`."""
        return [(row, request) for row, request in enumerate(self.owner) if request in requests] if requests else []
