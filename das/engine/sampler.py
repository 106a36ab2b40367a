"""The verifier: keyed sampling on the target's logits, the same for passes with and without drafts.

A pass returns one row of logits for the next token of each request, and one more row after each drafted token. Every
row is treated as an ordinary decode row: the same masks, the same temperature, the same noise(seed, position). A
drafted token is accepted if and only if it equals the token sampled on its row. The emitted tokens therefore never
depend on the draft (exactness level 2, docs/exactness.md).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
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

from das.engine.layout import Layout, RowLayout
from das.engine.noise import REJECTED, keyed_argmax, keyed_verify, keyed_walk, splitmix64
from das.engine.seeds import DefaultSeeds

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

GREEDY_BELOW = 1e-5  # temperature below which a request takes the argmax; vLLM uses the same threshold


class UnsupportedSampling(ValueError):
    """A request uses a sampling feature that keyed sampling cannot combine with drafts."""


@dataclass(frozen=True, slots=True)
class _Seeded:
    """A request's seed, and what it was drawn for."""

    state: Any  # vLLM's CachedRequestState
    params: Any
    turn: int  # of a streaming session; 0 is the first
    seed: int


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
        metadata = batch.sampling_metadata
        num_requests = batch.num_reqs
        layout = None if drafts is None or not any(drafts.num_draft_tokens) else Layout(drafts)

        # Processing happens in place. A copy is kept only where raw values must be reported.
        logits = logits.to(torch.float32)
        wants_logprobs = metadata.max_num_logprobs is not None or bool(metadata.logprob_token_ids)
        raw = logits.clone() if wants_logprobs and self.logprobs_mode.startswith("raw") else None
        rows = Rows(metadata, num_requests, layout, self.forbidden_tokens(runner, logits))
        logits = rows.apply_before_temperature(logits)
        temperature = batch.temperature_cpu[:num_requests]
        greedy = None if metadata.all_random else temperature < GREEDY_BELOW
        if not metadata.all_greedy:
            logits = rows.apply_after_temperature(logits, temperature, greedy)

        seeds = self.request_seeds(runner)
        positions = np.subtract(
            batch.num_tokens_no_spec[:num_requests],
            batch.num_prompt_tokens[:num_requests],
            dtype=np.int64,
            casting="unsafe",
        )
        cells = None  # row of each emitted token
        if layout is None:
            emitted = keyed_argmax(logits, seeds, positions, greedy)[:, None].to(torch.int32)
        elif layout.parents is None:
            emitted = keyed_verify(logits, layout.num_drafted, layout.draft_tokens, seeds, positions, greedy)
            cells = layout.cells() if wants_logprobs else None
        else:
            emitted, cells = keyed_walk(
                logits, layout.num_drafted, layout.draft_tokens, layout.parents, layout.offset, seeds, positions, greedy
            )
        logprobs = None
        if wants_logprobs:
            logprobs = self._logprobs(metadata, logits if raw is None else raw, emitted, cells)
        return SamplerOutput(sampled_token_ids=emitted, logprobs_tensors=logprobs)

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
            used = np.arange(len(cells)) if every_cell else (tokens[:, 0] != REJECTED).cpu().numpy().nonzero()[0]
            values = values[torch.from_numpy(cells[used]).to(values.device)]
        if not self.logprobs_mode.endswith("logits"):
            values = values.log_softmax(dim=-1)
        if num_logprobs == -1:
            return LogprobsTensors(torch.empty(0), values, torch.empty(0))
        if cells is not None:
            used_cells = torch.from_numpy(used).to(tokens.device)
            tokens = tokens[used_cells]
        listed_tokens = tokens.to(torch.int64)
        listed = values.gather(-1, listed_tokens)
        ranks = (values >= listed).sum(dim=-1)
        if num_logprobs > 0:
            top, top_tokens = values.topk(num_logprobs, dim=-1)
            listed, listed_tokens = torch.cat((listed, top), dim=1), torch.cat((listed_tokens, top_tokens), dim=1)
        listed_tokens = listed_tokens.to(torch.int32)
        if cells is not None:  # cells without an emitted token stay 0, and vLLM drops them
            listed_tokens, listed, ranks = (
                compact.new_zeros((len(cells), *compact.shape[1:])).index_copy_(0, used_cells, compact)
                for compact in (listed_tokens, listed, ranks)
            )
        return LogprobsTensors(listed_tokens, listed, ranks)


class Rows:
    """Applies each request's sampling parameters to all of its rows.

    To a row, the drafted tokens before it count as generated output. layout: what rows there are, None for one row of
    each request and no drafts.
    forbidden: tokens that requests must not emit, bool [requests, vocab]; None if there are none.
    """

    def __init__(
        self, metadata: SamplingMetadata, num_requests: int, layout: RowLayout | None, forbidden: torch.Tensor | None
    ):
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
        return per_request[torch.from_numpy(self.layout.owner).to(per_request.device)]

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
        if greedy is not None:
            temperature = np.where(greedy, np.float32(1.0), temperature)
        if np.any(temperature != 1.0):
            logits = logits.div_(self._expand(torch.from_numpy(temperature)).to(logits.device)[:, None])
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
