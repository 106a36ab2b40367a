"""The verifier: keyed sampling on the target's logits, for passes with and without drafts alike.

Every row of logits (a request's next token, or the token after each of its drafted tokens) is treated as an ordinary
decode row: same masks, same temperature, same noise(seed, position). A drafted token is accepted iff it equals the
token sampled on its row, so what is emitted never depends on what was drafted (exactness level 2 in docs).
"""

import functools
from collections.abc import Sequence
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

from das.engine.noise import REJECTED, keyed_argmax, keyed_verify

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

GREEDY_BELOW = 1e-5  # vLLM's own threshold: a lower temperature means argmax


class UnsupportedSampling(ValueError):
    """A request asks for something that keyed sampling cannot combine with drafts."""


def seed_or_default(seed: int | None, request_id: str, engine_seed: int) -> int:
    """The seed that keys a request's noise: its own, or one derived from the engine's seed and its place in the call.

    vLLM ids look like "17-a1b2c3d4" (or "3_17-..." for the fourth of n samples); the random tail is cut off so that
    requests without a seed repeat from run to run.
    """
    if seed is not None:
        return seed
    place = request_id.rsplit("-", 1)[0]
    digest = 1469598103934665603  # FNV-1a, 64 bits
    for byte in f"{engine_seed}/{place}".encode():
        digest = ((digest ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return digest - (1 << 63)


class KeyedSampler:
    """Stands in for vLLM's sampler and rejection sampler in one model runner."""

    def __init__(self, engine_seed: int, logprobs_mode: str):
        self.engine_seed = engine_seed
        self.logprobs_mode = logprobs_mode
        self._seeds: dict[str, int] = {}  # by request
        self._seeded: list[str] = []  # the requests, in batch order, that _batch_seeds is for
        self._batch_seeds = np.empty(0, np.int64)

    def sample(
        self, runner: "GPUModelRunner", logits: torch.Tensor, drafts: SpecDecodeMetadata | None
    ) -> SamplerOutput:
        """Sample every row, accept the drafted prefix that equals it.

        logits: [rows, vocab]; rows = live requests without drafts, sum(drafted + 1) with them.
        """
        batch = runner.input_batch
        metadata = batch.sampling_metadata
        requests = batch.num_reqs
        layout = None if drafts is None or not any(drafts.num_draft_tokens) else _Layout(drafts)

        # Copies are kept only where raw values must be reported; processing happens in place.
        logits = logits.to(torch.float32)
        wants_logprobs = metadata.max_num_logprobs is not None or bool(metadata.logprob_token_ids)
        raw = logits.clone() if wants_logprobs and self.logprobs_mode.startswith("raw") else None
        rows = _Rows(metadata, requests, layout)
        logits = rows.apply_before_temperature(logits)
        temperature = batch.temperature_cpu[:requests]
        greedy = None if metadata.all_random else temperature < GREEDY_BELOW
        if not metadata.all_greedy:
            logits = rows.apply_after_temperature(logits, temperature, greedy)

        seeds = self._request_seeds(runner)
        positions = np.subtract(
            batch.num_tokens_no_spec[:requests], batch.num_prompt_tokens[:requests], dtype=np.int64, casting="unsafe"
        )
        if layout is None:
            emitted = keyed_argmax(logits, seeds, positions, greedy)[:, None].to(torch.int32)
        else:
            emitted = keyed_verify(logits, layout.drafted, layout.drafts, seeds, positions, greedy)
        logprobs = None
        if wants_logprobs:
            logprobs = self._logprobs(metadata, logits if raw is None else raw, emitted, layout)
        return SamplerOutput(sampled_token_ids=emitted, logprobs_tensors=logprobs)

    def _request_seeds(self, runner: "GPUModelRunner") -> np.ndarray:
        ids = runner.input_batch.req_ids
        if self._seeded != ids:
            seeds = {}
            for name, state in runner.requests.items():
                if name in self._seeds:
                    seeds[name] = self._seeds[name]
                elif state.sampling_params is not None:
                    seeds[name] = seed_or_default(state.sampling_params.seed, name, self.engine_seed)
            self._seeds, self._seeded = seeds, list(ids)
            self._batch_seeds = np.fromiter((seeds[name] for name in ids), np.int64, len(ids))
        return self._batch_seeds

    def _logprobs(
        self, metadata: SamplingMetadata, values: torch.Tensor, emitted: torch.Tensor, layout: "_Layout | None"
    ) -> LogprobsTensors:
        """Log-probs of the emitted tokens, a cell each: [requests * (longest draft + 1)], vLLM's own layout."""
        if metadata.logprob_token_ids:
            raise UnsupportedSampling(
                "logprob_token_ids cannot be combined with keyed sampling: ask for logprobs=N instead"
            )
        wanted = metadata.max_num_logprobs
        assert wanted is not None
        tokens = emitted.reshape(-1, 1)
        if layout is not None:
            cells = layout.cells().reshape(-1)
            used = np.arange(len(cells)) if wanted == -1 else (tokens[:, 0] != REJECTED).cpu().numpy().nonzero()[0]
            values = values[torch.from_numpy(cells[used]).to(values.device)]
        if not self.logprobs_mode.endswith("logits"):
            values = values.log_softmax(dim=-1)
        if wanted == -1:
            return LogprobsTensors(torch.empty(0), values, torch.empty(0))
        if layout is not None:
            where = torch.from_numpy(used).to(tokens.device)
            tokens = tokens[where]
        listed_tokens = tokens.to(torch.int64)
        listed = values.gather(-1, listed_tokens)
        ranks = (values >= listed).sum(dim=-1)
        if wanted > 0:
            top, top_tokens = values.topk(wanted, dim=-1)
            listed, listed_tokens = torch.cat((listed, top), dim=1), torch.cat((listed_tokens, top_tokens), dim=1)
        listed_tokens = listed_tokens.to(torch.int32)
        if layout is not None:  # what nobody emitted stays 0: vLLM drops it
            listed_tokens, listed, ranks = (
                spread.new_zeros((len(cells), *spread.shape[1:])).index_copy_(0, where, spread)
                for spread in (listed_tokens, listed, ranks)
            )
        return LogprobsTensors(listed_tokens, listed, ranks)


class _Layout:
    """Where the rows of a drafted pass belong: a row for each request's next token, one after each drafted token."""

    def __init__(self, drafts: SpecDecodeMetadata):
        self.drafted = np.asarray(drafts.num_draft_tokens, np.int64)  # [requests]
        self.drafts = drafts.draft_token_ids  # [sum(drafted)]

    @functools.cached_property
    def owner(self) -> np.ndarray:
        """Request of each row, int64 [rows]."""
        return np.repeat(np.arange(len(self.drafted)), self.drafted + 1)

    @functools.cached_property
    def first_row(self) -> np.ndarray:
        """[requests]"""
        return np.cumsum(self.drafted + 1) - (self.drafted + 1)

    @functools.cached_property
    def offset(self) -> np.ndarray:
        """How many drafted tokens are before each row, int64 [rows]."""
        return np.arange(len(self.owner)) - self.first_row[self.owner]

    def before(self) -> list[list[int]]:
        """The drafted tokens before each row."""
        drafts, starts = self.drafts.tolist(), (np.cumsum(self.drafted) - self.drafted).tolist()
        return [
            drafts[starts[request] : starts[request] + offset]
            for request, offset in zip(self.owner.tolist(), self.offset.tolist(), strict=True)
        ]

    def cells(self) -> np.ndarray:
        """Row of each cell [requests, longest + 1]; a request's last row where it has no more."""
        place = np.arange(int(self.drafted.max()) + 1)[None, :]
        rows: np.ndarray = self.first_row[:, None] + np.minimum(place, self.drafted[:, None])
        return rows


class _Rows:
    """Each request's sampling parameters on all of its rows; a row sees the drafted tokens before it as output."""

    def __init__(self, metadata: SamplingMetadata, requests: int, layout: _Layout | None):
        self.metadata = metadata
        self.requests = requests
        self.layout = layout

    @functools.cached_property
    def owner(self) -> Sequence[int]:
        """Request of each row."""
        return range(self.requests) if self.layout is None else self.layout.owner.tolist()

    def _expand(self, per_request: torch.Tensor) -> torch.Tensor:
        """Values of the requests -> of their rows."""
        if self.layout is None:
            return per_request
        return per_request[torch.from_numpy(self.layout.owner).to(per_request.device)]

    def _outputs(self) -> list[list[int]]:
        """Output tokens as each row sees them."""
        outputs = self.metadata.output_token_ids
        if self.layout is None:
            return outputs
        return [[*outputs[request], *before] for request, before in zip(self.owner, self.layout.before(), strict=True)]

    def apply_before_temperature(self, logits: torch.Tensor) -> torch.Tensor:
        """What may change an argmax: whitelist, bad words, minimum length, bias, penalties (vLLM's own order)."""
        metadata = self.metadata
        holder = metadata.thinking_budget_state_holder
        if holder is not None and holder.has_tracked_requests():
            raise UnsupportedSampling("a thinking token budget cannot be combined with keyed sampling: leave it unset")
        if metadata.allowed_token_ids_mask is not None:
            mask = metadata.allowed_token_ids_mask[: self.requests]
            logits.masked_fill_(self._expand(mask), float("-inf"))
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
        """Temperature, then what only restricts sampling: min-p, top-k, top-p.

        temperature: float32 [requests]; greedy: bool [requests], whose temperature is not applied (None: none).
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
            # A request without top-p (1.0) must not lose the tokens that underflow only because another has one.
            top_p = torch.where(top_p >= 1.0, 2.0, top_p)
        # Always the sorting form: vLLM's faster forms depend on the batch size, and their ties with it.
        return apply_top_k_top_p_pytorch(
            logits,
            None if top_k is None else self._expand(top_k),
            None if top_p is None else self._expand(top_p),
        )

    def _refuse_with_drafts(self, processor: Any) -> None:
        if self.layout is not None:
            raise UnsupportedSampling(
                f"custom logits processor {type(processor).__name__} cannot be combined with drafts: use budget=none"
            )

    def _logit_bias(self, logits: torch.Tensor, processor: LogitBiasLogitsProcessor) -> None:
        cells = [
            (row, token, bias)
            for row, request in self._rows_of(processor.biases)
            for token, bias in processor.biases[request].items()
        ]
        if cells:
            rows, tokens, biases = zip(*cells, strict=True)
            where = torch.tensor([rows, tokens], device=logits.device)
            logits[where[0], where[1]] += torch.tensor(biases, dtype=torch.float32, device=logits.device)

    def _min_tokens(self, logits: torch.Tensor, processor: MinTokensLogitsProcessor) -> None:
        rows: list[int] = []
        tokens: list[int] = []
        grammatical: set[int] = set()  # rows under a grammar, which may leave a stop token as the only choice
        for row, request in self._rows_of(processor.min_toks):
            minimum, output, stop_tokens, *grammar = processor.min_toks[request]
            before = 0 if self.layout is None else int(self.layout.offset[row])
            if stop_tokens and len(output) + before < minimum:
                rows += [row] * len(stop_tokens)
                tokens += sorted(stop_tokens)
                if any(grammar):
                    grammatical.add(row)
        if not rows:
            return
        where = torch.tensor([rows, tokens], device=logits.device)
        unmasked = {row: logits[row].clone() for row in grammatical}
        logits[where[0], where[1]] = float("-inf")
        for row, before_masking in unmasked.items():
            if torch.isneginf(logits[row]).all():
                logits[row] = before_masking

    def _rows_of(self, requests: dict[int, Any]) -> list[tuple[int, int]]:
        """(row, request) for the rows whose request is in `requests`."""
        return [(row, request) for row, request in enumerate(self.owner) if request in requests] if requests else []
