"""The verifier samples from the policy's logits with keyed noise, in the same way in passes with and without drafts.

A pass returns one row of logits for the next token of each request, and one more row after each drafted token. Every
row is treated as an ordinary decode row: the same masks, the same temperature, the same noise(seed, position). A
drafted token is accepted if and only if it equals the token sampled on its row. The emitted tokens therefore never
depend on the draft (exactness level 2, docs/exactness.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from das.verify.batch import RunningBatch
from das.verify.draw import draw, draw_inputs
from das.verify.host_copies import on_device
from das.verify.layout import DraftRows, Layout
from das.verify.logprobs import emitted_logprobs
from das.verify.noise import REJECTED, likeliest
from das.verify.sampling_parameters import GREEDY_BELOW, Rows, applied_temperature, has_custom_processors
from das.verify.sampling_pieces import joined, max_piece_rows, pieces_of
from das.verify.seeds import DefaultSeeds, RequestSeeds


@dataclass(frozen=True, slots=True)
class Remembered:
    """The distributions from which a piece of a pass was sampled. A GPU may still be copying them: read them when the
    pass's tokens are on the host."""

    pairs: np.ndarray  # the distribution of each row of logits (das.drafter.distributions), uint32 [rows, PAIRS]
    cells: np.ndarray  # the row of each token that a request may emit, int64 [requests, width]


def remembered_of(pieces: Sequence[Remembered], rows: Sequence[int], counts: Sequence[int]) -> np.ndarray | None:
    """Returns the distributions from which emitted tokens were sampled, uint32 [sum(counts), PAIRS]: for each i, those
    of the first counts[i] tokens that row rows[i] of the batch emitted. None if no distributions were kept."""
    if not pieces:
        return None
    first_rows = np.cumsum([0, *(len(piece.pairs) for piece in pieces)])
    cells = np.concatenate([piece.cells + first for piece, first in zip(pieces, first_rows, strict=False)])
    pairs = pieces[0].pairs if len(pieces) == 1 else np.concatenate([piece.pairs for piece in pieces])
    is_emitted = np.arange(cells.shape[1]) < np.asarray(counts)[:, None]
    return pairs[cells[np.asarray(rows)][is_emitted]]


@dataclass(frozen=True, slots=True)
class _Pass:
    """The arrays that the pieces of a pass share. Arrays have an entry for each request of the batch."""

    metadata: SamplingMetadata
    num_requests: int
    temperature: np.ndarray  # float32
    greedy: np.ndarray | None  # bool; None: no request is greedy
    seeds: np.ndarray  # int64
    positions: np.ndarray  # position of the next token, int64
    forbidden: torch.Tensor | None  # bool [requests, vocab]
    width: int  # the most tokens that a request may emit


class KeyedSampler:
    """Replaces vLLM's sampler and rejection sampler in one model runner.

    engine_seed, engine_rank: see DefaultSeeds, which makes the seeds of requests that bring none. logprobs_mode: vLLM's
    option of that name: whether raw or processed values are reported, and whether as log-probs or as logits.
    """

    def __init__(self, engine_seed: int, logprobs_mode: str, engine_rank: int = 0):
        self.seeds = RequestSeeds(DefaultSeeds(engine_seed, engine_rank))
        self.logprobs_mode = logprobs_mode
        self.remembers = False  # whether the drafter remembers the distributions from which tokens were sampled
        self.remembered: list[Remembered] = []  # the distributions of the last pass, piece by piece
        # The metadata of the batch that _forbidden belongs to. vLLM makes it anew with every change of the batch.
        self._masked_for: Any = None
        self._forbidden = torch.empty(0, dtype=torch.bool)

    def knows_noise(self, recorded: str) -> bool:
        """Whether a recorded response is emitted with its own noise (das/verify/forced.py). This sampler emits none."""
        return False

    def sample(self, runner: RunningBatch, logits: torch.Tensor, drafts: SpecDecodeMetadata | None) -> SamplerOutput:
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
            self.seeds.of_batch(runner),
            positions,
            self.forbidden_tokens(runner, logits),
            1 if layout is None else layout.width(),
        )
        self.remembered = []
        max_rows = max_piece_rows(batch.sampling_metadata, logits.shape[-1])
        # Custom processors can handle whole batches only.
        if len(logits) <= max_rows or (layout is None and has_custom_processors(batch.sampling_metadata)):
            emitted, logprobs = self._sample_piece(work, logits, layout)
            return SamplerOutput(sampled_token_ids=emitted, logprobs_tensors=logprobs)
        return joined(
            [self._sample_piece(work, rows, piece) for rows, piece in pieces_of(logits, layout, num_requests, max_rows)]
        )

    def _sample_piece(
        self, work: _Pass, logits: torch.Tensor, layout: Layout | None
    ) -> tuple[torch.Tensor, LogprobsTensors | None]:
        """Sample a piece: consecutive requests of the batch. Returns their emitted tokens and log-probs. logits: their
        rows, changed in place. layout: None if each request has one row."""
        metadata = work.metadata
        first = 0 if layout is None else layout.first_request
        own = slice(first, work.num_requests if layout is None else first + len(layout.num_drafted))
        seeds, positions = work.seeds[own], work.positions[own]
        greedy = None if work.greedy is None else work.greedy[own]
        inputs: dict[str, torch.Tensor] = {}  # what the device needs from the host, in one copy
        if logits.device.type != "cpu":
            inputs = on_device(logits.device, self._device_inputs(work, layout, seeds, positions, greedy))

        # Processing happens in place. A copy is kept only where raw values must be reported.
        logits = logits.to(torch.float32)
        wants_logprobs = metadata.max_num_logprobs is not None or bool(metadata.logprob_token_ids)
        raw = logits.clone() if wants_logprobs and self.logprobs_mode.startswith("raw") else None
        rows = Rows(metadata, work.num_requests, layout, work.forbidden, inputs)
        logits = rows.apply_before_temperature(logits)
        if not metadata.all_greedy:
            logits = rows.apply_after_temperature(logits, work.temperature, work.greedy)

        emitted, cells = draw(logits, layout, seeds, positions, greedy, work.width, inputs)
        if self.remembers:
            self.remember(logits, emitted, cells)
        logprobs = None
        if wants_logprobs:
            logprobs = emitted_logprobs(metadata, self.logprobs_mode, logits if raw is None else raw, emitted, cells)
        return emitted, logprobs

    def begin_pass(self, runner: RunningBatch, logits: torch.Tensor, layout: Layout | None) -> None:
        """Forget the distributions of the pass before. The second runner calls this in place of `sample`. For the
        arguments see ForcedSampler.begin_pass."""
        self.remembered = []

    def remember(self, logits: torch.Tensor, emitted: torch.Tensor, cells: np.ndarray | None) -> None:
        """Keep the distributions of a piece's emitted tokens, for the drafter. Arguments: see emitted_logprobs."""
        if cells is None:
            cells = np.arange(len(emitted))[:, None]
        used = cells.ravel() if emitted.device.type != "cpu" else cells[emitted.numpy() != REJECTED]
        self.remembered.append(Remembered(likeliest(logits, np.ascontiguousarray(used, np.int64)), cells))

    def _device_inputs(
        self,
        work: _Pass,
        layout: Layout | None,
        seeds: np.ndarray,
        positions: np.ndarray,
        greedy: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        """Returns the arrays that the device needs in order to sample a piece. `on_device` copies them there.

        seeds, positions, greedy: for each of the piece's requests, [requests].
        """
        inputs = draw_inputs(layout, seeds, positions, greedy, work.width)
        if layout is not None:
            inputs["owner"] = layout.owner
        temperature = applied_temperature(work.temperature, work.greedy)
        if temperature is not None:
            inputs["temperature"] = temperature if layout is None else temperature[layout.owner]
        return inputs

    def seeds_of(self, runner: RunningBatch, rows: np.ndarray) -> np.ndarray:
        """Returns the seeds of some rows of the batch, for drafters that are models. Both arrays int64 [rows]."""
        return self.seeds.of_batch(runner)[rows]

    def processed(self, runner: RunningBatch, logits: torch.Tensor, layout: DraftRows) -> torch.Tensor:
        """Returns logits of a drafter after each request's sampling parameters were applied, as they are to the
        verifier's. logits: float32 [rows, vocab], changed in place."""
        batch = runner.input_batch
        metadata, num_requests = batch.sampling_metadata, batch.num_reqs
        rows = Rows(metadata, num_requests, layout, self.forbidden_tokens(runner, logits))
        logits = rows.apply_before_temperature(logits)
        if metadata.all_greedy:
            return logits
        temperature = batch.temperature_cpu[:num_requests]
        greedy = None if metadata.all_random else temperature < GREEDY_BELOW
        return rows.apply_after_temperature(logits, temperature, greedy)

    def forbidden_tokens(self, runner: RunningBatch, logits: torch.Tensor) -> torch.Tensor | None:
        """Returns the tokens that each request's allowed_token_ids rule out, bool [requests, vocab]; None if no request
        has allowed_token_ids.

        vLLM's metadata has such a mask too. Up to vLLM 0.27 its rows may still hold the mask of a request that has
        left, so tokens depend on the batch. Here the mask is made from the requests whenever the batch has changed.
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
