"""Apply each request's sampling parameters to all of its rows of logits.

The drafted tokens before a row count as generated output, so the row is processed like an ordinary decode row.
"""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm.v1.sample.ops.penalties import apply_all_penalties
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

from das.verify.host_copies import on_device
from das.verify.layout import RowLayout
from das.verify.sampling_pieces import SAMPLER_BYTES, SORTED_CELL_BYTES

GREEDY_BELOW = 1e-5  # temperature below which a request takes the argmax; vLLM uses the same threshold
NOTHING: Mapping[str, torch.Tensor] = MappingProxyType({})  # on the CPU nothing needs to be brought to a device


class UnsupportedSampling(ValueError):
    """A request uses a sampling feature that keyed sampling cannot combine with drafts."""


def has_custom_processors(metadata: SamplingMetadata) -> bool:
    """Returns whether logits are changed by a processor that is not vLLM's. Such a processor can handle whole batches
    only."""
    own = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    return not all(isinstance(processor, own) for processor in metadata.logitsprocs.all)


def applied_temperature(temperature: np.ndarray, greedy: np.ndarray | None) -> np.ndarray | None:
    """Returns the temperature by which each request's logits are divided, [requests], 1 for greedy requests; None if
    all are 1.
    """
    if greedy is not None:
        temperature = np.where(greedy, np.float32(1.0), temperature)
    return temperature if np.any(temperature != 1.0) else None


def rows_summed_alike(vocab: int) -> int:
    """Returns the most rows of `vocab` logits whose cumulative sums torch computes on a GPU with 512 threads a row, as
    it does for 2 rows. By torch's ScanUtils.cuh, which gives a row fewer threads where there are more rows; a single
    row takes another algorithm. At least 2."""
    return 1 << max(1, (vocab - 1).bit_length() - 9)


def keep_likeliest(logits: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None) -> torch.Tensor:
    """Apply top-k and top-p, float32 [rows, vocab], maybe in place. top_k, top_p: [rows]; None: no such restriction.

    On a GPU a row's cumulative sum, which top-p needs, depends on how many rows are summed together. So there rows are
    handled in groups of 2 to `rows_summed_alike` rows, few enough for SAMPLER_BYTES, and a single row twice.
    """
    if top_k is None and top_p is None:
        return logits
    # Always the sorting form: vLLM picks its faster forms by batch size, and they break ties differently.
    if top_p is None:
        return apply_top_k_top_p_pytorch(logits, top_k, None)
    # A request with top-p 1.0 must keep tokens whose probability underflows, also beside one with lower top-p.
    top_p = torch.where(top_p >= 1.0, 2.0, top_p)
    most = min(rows_summed_alike(logits.shape[1]), max(2, SAMPLER_BYTES // (logits.shape[1] * SORTED_CELL_BYTES)))
    if logits.device.type == "cpu" or 2 <= len(logits) <= most:
        return apply_top_k_top_p_pytorch(logits, top_k, top_p)
    return in_groups(logits, top_k, top_p, most)


def in_groups(logits: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor, most: int) -> torch.Tensor:
    """Apply top-k and top-p in place, to at most `most` rows at a time. A group of one row is handled twice."""
    for first in range(0, len(logits), most):
        few = slice(first, min(first + most, len(logits)))
        copies = 2 if few.stop - first == 1 else 1
        group = logits[few].repeat(copies, 1)
        k, p = (None if each is None else each[few].repeat(copies) for each in (top_k, top_p))
        logits[few] = apply_top_k_top_p_pytorch(group, k, p)[: few.stop - first]
    return logits


class Rows:
    """Applies each request's sampling parameters to all of its rows.

    For a row, the drafted tokens before it count as generated output. layout: the rows' requests and drafted tokens;
    None: each request has one row, and nothing was drafted.
    forbidden: tokens that requests must not emit, bool [requests, vocab]; None if there are none.
    inputs: `owner` and `temperature` of each row, [rows], if they are on the device already.
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
        """Returns the temperature of each row, on the device. divisor: the temperature of each request."""
        if "temperature" in self._inputs:
            return self._inputs["temperature"]
        per_row = divisor if self.layout is None else divisor[self.layout.owner]
        return on_device(device, {"temperature": per_row})["temperature"]

    def _outputs(self) -> list[list[int]]:
        """Returns each row's output tokens: its request's output, then the drafted tokens before the row."""
        outputs = self.metadata.output_token_ids
        if self.layout is None:
            return outputs
        return [[*outputs[request], *before] for request, before in zip(self.owner, self.layout.before(), strict=True)]

    def apply_before_temperature(self, logits: torch.Tensor) -> torch.Tensor:
        """Apply parameters that may change an argmax: allowed tokens, bad words, minimum length, bias, penalties
        (vLLM's order).

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
        return keep_likeliest(
            logits,
            None if top_k is None else self._expand(top_k),
            None if top_p is None else self._expand(top_p),
        )

    def _refuse_with_drafts(self, processor: Any) -> None:
        """Raise UnsupportedSampling in a pass with drafts, because this processor expects one row for each request."""
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
        """Returns (row, index of its request) for every row whose request is a key of `requests`."""
        return [(row, request) for row, request in enumerate(self.owner) if request in requests] if requests else []
