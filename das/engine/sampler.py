"""The verifier: keyed sampling on the target's logits, for passes with and without drafts alike.

Every row of logits (a request's next token, or the token after each of its drafted tokens) is treated as an ordinary
decode row: same masks, same temperature, same noise(seed, position). A drafted token is accepted iff it equals the
token sampled on its row, so what is emitted never depends on what was drafted (exactness level 2 in docs).
"""

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

from das.engine.noise import keyed_argmax

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

GREEDY_BELOW = 1e-5  # vLLM's own threshold: a lower temperature means argmax
PLACEHOLDER = -1  # vLLM's mark of a rejected position in sampled_token_ids


class UnsupportedSampling(ValueError):
    """A request asks for something that keyed sampling cannot combine with drafts."""


def request_seed(seed: int | None, request_id: str, engine_seed: int) -> int:
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

    def __init__(self, engine_seed: int, logprobs_mode: str, vocab: int):
        self.engine_seed = engine_seed
        self.logprobs_mode = logprobs_mode
        self.vocab = vocab
        self._seeds: dict[str, int] = {}

    def sample(
        self, runner: "GPUModelRunner", logits: torch.Tensor, drafts: SpecDecodeMetadata | None
    ) -> SamplerOutput:
        """Sample every row, accept the drafted prefix that equals it.

        logits: [rows, vocab]; rows = live requests without drafts, sum(drafted + 1) with them.
        """
        batch = runner.input_batch
        metadata = batch.sampling_metadata
        requests = batch.num_reqs
        drafted = np.zeros(requests, np.int64) if drafts is None else np.asarray(drafts.num_draft_tokens, np.int64)
        owner = np.repeat(np.arange(requests), drafted + 1)  # [rows] -> request row in the batch
        first_row = np.cumsum(drafted + 1) - (drafted + 1)  # [requests]
        offset = np.arange(len(owner)) - first_row[owner]  # [rows] drafted tokens before this one
        draft_tokens = np.full((requests, int(drafted.max(initial=0))), -2, np.int64)
        if drafts is not None:
            filled = np.arange(draft_tokens.shape[1])[None, :] < drafted[:, None]
            draft_tokens[filled] = drafts.draft_token_ids.cpu().numpy()

        # Copies are kept only where raw values must be reported; processing happens in place.
        logits = logits.to(torch.float32)
        wants_logprobs = metadata.max_num_logprobs is not None or bool(metadata.logprob_token_ids)
        raw = logits.clone() if wants_logprobs and self.logprobs_mode.startswith("raw") else None
        rows = _Rows(metadata, owner, offset, draft_tokens if drafts is not None else None)
        logits = rows.apply_before_temperature(logits)
        temperature = batch.temperature_cpu[:requests][owner]
        greedy = temperature < GREEDY_BELOW
        if not metadata.all_greedy:
            logits = rows.apply_after_temperature(logits, np.where(greedy, 1.0, temperature).astype(np.float32))

        positions = (batch.num_tokens_no_spec[:requests] - batch.num_prompt_tokens[:requests]).astype(np.int64)
        seeds = self._request_seeds(runner)
        tokens = keyed_argmax(logits, seeds[owner], positions[owner] + offset, greedy)  # [rows]

        emitted, kept_rows = _accept(tokens, drafted, first_row, draft_tokens)
        return SamplerOutput(
            sampled_token_ids=emitted.to(torch.int32),
            logprobs_tensors=self._logprobs(metadata, raw if raw is not None else logits, tokens, kept_rows)
            if wants_logprobs
            else None,
        )

    def _request_seeds(self, runner: "GPUModelRunner") -> np.ndarray:
        ids = runner.input_batch.req_ids
        if any(request not in self._seeds for request in ids):
            self._seeds = {
                request: request_seed(state.sampling_params.seed, request, self.engine_seed)
                for request, state in runner.requests.items()
                if state.sampling_params is not None
            }
        return np.fromiter((self._seeds[request] for request in ids), np.int64, len(ids))

    def _logprobs(
        self,
        metadata: SamplingMetadata,
        values: torch.Tensor,
        tokens: torch.Tensor,
        kept_rows: np.ndarray,
    ) -> LogprobsTensors:
        """Log-probs of the emitted tokens, laid out [requests * (longest draft + 1)] as vLLM's parse_output expects."""
        if metadata.logprob_token_ids:
            raise UnsupportedSampling(
                "logprob_token_ids cannot be combined with keyed sampling: ask for logprobs=N instead"
            )
        if not self.logprobs_mode.endswith("logits"):
            values = values.log_softmax(dim=-1)
        wanted = metadata.max_num_logprobs
        assert wanted is not None
        cells = None
        if kept_rows.size != len(tokens) or (kept_rows != np.arange(len(tokens))).any():
            cells = torch.from_numpy(kept_rows).to(values.device)
        if wanted == -1:
            return LogprobsTensors(torch.empty(0), values if cells is None else values[cells], torch.empty(0))
        chosen = values.gather(-1, tokens[:, None])
        ranks = (values >= chosen).sum(dim=-1)
        listed, listed_tokens = chosen, tokens[:, None]
        if wanted > 0:
            top, top_tokens = values.topk(wanted, dim=-1)
            listed, listed_tokens = torch.cat((chosen, top), dim=1), torch.cat((listed_tokens, top_tokens), dim=1)
        # Rows are few, cells many when drafts differ in length: only the finished numbers are spread over the cells.
        if cells is not None:
            listed, listed_tokens, ranks = listed[cells], listed_tokens[cells], ranks[cells]
        return LogprobsTensors(listed_tokens.to(torch.int32), listed, ranks)


def _accept(
    tokens: torch.Tensor, drafted: np.ndarray, first_row: np.ndarray, draft_tokens: np.ndarray
) -> tuple[torch.Tensor, np.ndarray]:
    """Emit each request's accepted prefix and the token sampled after it.

    tokens: [rows] sampled; drafted, first_row: [requests]; draft_tokens: [requests, longest], -2 where none.
    Returns emitted [requests, longest + 1] with PLACEHOLDER after the last emitted token, and the row of logits each
    cell came from, flat (cells that are placeholders repeat their request's last row).
    """
    longest = draft_tokens.shape[1]
    if longest == 0:
        return tokens[:, None], first_row
    rows = first_row[:, None] + np.minimum(np.arange(longest + 1)[None, :], drafted[:, None])
    sampled = tokens.cpu().numpy()[rows]  # [requests, longest + 1]
    matches = np.cumprod(sampled[:, :-1] == draft_tokens, axis=1).sum(axis=1)  # accepted tokens of each request
    emitted = np.where(np.arange(longest + 1)[None, :] <= matches[:, None], sampled, PLACEHOLDER)
    return torch.from_numpy(emitted).to(tokens.device), rows.reshape(-1)


class _Rows:
    """Each request's sampling parameters on all of its rows; a row sees the drafted tokens before it as output."""

    def __init__(self, metadata: SamplingMetadata, owner: np.ndarray, offset: np.ndarray, drafts: np.ndarray | None):
        self.metadata = metadata
        self.owner = owner
        self.offset = offset
        self.drafts = drafts
        self.index = None if drafts is None else torch.from_numpy(owner)

    def _expand(self, per_request: torch.Tensor) -> torch.Tensor:
        return per_request if self.index is None else per_request[self.index.to(per_request.device)]

    def _outputs(self) -> list[list[int]]:
        """Output tokens as each row sees them."""
        outputs = self.metadata.output_token_ids
        if self.drafts is None:
            return outputs
        return [
            [*outputs[request], *self.drafts[request, :before].tolist()]
            for request, before in zip(self.owner.tolist(), self.offset.tolist(), strict=True)
        ]

    def apply_before_temperature(self, logits: torch.Tensor) -> torch.Tensor:
        """What may change an argmax: whitelist, bad words, minimum length, bias, penalties (vLLM's own order)."""
        metadata = self.metadata
        holder = metadata.thinking_budget_state_holder
        if holder is not None and holder.has_tracked_requests():
            raise UnsupportedSampling("a thinking token budget cannot be combined with keyed sampling: leave it unset")
        if metadata.allowed_token_ids_mask is not None:
            mask = metadata.allowed_token_ids_mask[: int(self.owner[-1]) + 1]
            logits.masked_fill_(self._expand(mask), float("-inf"))
        if metadata.bad_words_token_ids:
            words = {
                row: metadata.bad_words_token_ids[request]
                for row, request in enumerate(self.owner.tolist())
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

    def apply_after_temperature(self, logits: torch.Tensor, temperature: np.ndarray) -> torch.Tensor:
        """Temperature, then what only restricts sampling: min-p, top-k, top-p.

        temperature: float32 [rows], 1 for greedy rows.
        """
        if (temperature != 1.0).any():
            logits = logits.div_(torch.from_numpy(temperature).to(logits.device)[:, None])
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
        # Always the sorting form: vLLM's faster forms depend on the batch size, and their ties with it.
        return apply_top_k_top_p_pytorch(
            logits,
            None if top_k is None else self._expand(top_k),
            None if top_p is None else self._expand(top_p),
        )

    def _refuse_with_drafts(self, processor: Any) -> None:
        if self.drafts is not None:
            raise UnsupportedSampling(
                f"custom logits processor {type(processor).__name__} cannot be combined with drafts: use budget=none"
            )

    def _logit_bias(self, logits: torch.Tensor, processor: LogitBiasLogitsProcessor) -> None:
        for row, request in _rows_of(self.owner, processor.biases):
            bias = processor.biases[request]
            columns = torch.tensor(list(bias), device=logits.device)
            logits[row, columns] += torch.tensor(list(bias.values()), dtype=torch.float32, device=logits.device)

    def _min_tokens(self, logits: torch.Tensor, processor: MinTokensLogitsProcessor) -> None:
        for row, request in _rows_of(self.owner, processor.min_toks):
            minimum, output, stop_tokens = processor.min_toks[request][:3]
            if stop_tokens and len(output) + int(self.offset[row]) < minimum:
                logits[row, torch.tensor(sorted(stop_tokens), device=logits.device)] = float("-inf")


def _rows_of(owner: np.ndarray, requests: dict[int, Any]) -> Sequence[tuple[int, int]]:
    """(row, request) for the rows whose request is in `requests`."""
    if not requests:
        return ()
    return [(row, request) for row, request in enumerate(owner.tolist()) if request in requests]
