"""The verifier samples from the policy's logits with keyed noise, in the same way in passes with and without drafts.

A pass returns one row of logits for the next token of each request, and one more row after each drafted token. Every
row is treated as an ordinary decode row: the same masks, the same temperature, the same noise(seed, position). A
drafted token is accepted if and only if it equals the token sampled on its row. The emitted tokens therefore never
depend on the draft (exactness level 2, docs/exactness.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from das.verify.batch import RunningBatch
from das.verify.layout import Layout
from das.verify.noise import REJECTED, likeliest
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


class KeyedSampler:
    """What sampling with keyed noise keeps from pass to pass in one model runner: seeds, and what drafters remember.
    das/verify/draw.py draws, and das/engine/runner/verifier.py calls both.

    engine_seed, engine_rank: see DefaultSeeds, which makes the seeds of requests that bring none.
    """

    def __init__(self, engine_seed: int, engine_rank: int = 0):
        self.seeds = RequestSeeds(DefaultSeeds(engine_seed, engine_rank))
        self.remembers = False  # whether the drafter remembers the distributions from which tokens were sampled
        self.remembered: list[Remembered] = []  # the distributions of the last pass, piece by piece

    def knows_noise(self, recorded: str) -> bool:
        """Whether a recorded response is emitted with its own noise (das/verify/forced.py). This sampler emits none."""
        return False

    def begin_pass(self, runner: RunningBatch, logits: torch.Tensor, layout: Layout | None) -> None:
        """Forget the distributions of the pass before. For the arguments see ForcedSampler.begin_pass."""
        self.remembered = []

    def remember(self, logits: torch.Tensor, emitted: torch.Tensor, cells: np.ndarray | None) -> None:
        """Keep the distributions of a piece's emitted tokens, for the drafter. logits: processed, [rows, vocab].
        emitted, cells: what `draw` returned."""
        if cells is None:
            cells = np.arange(len(emitted))[:, None]
        used = cells.ravel() if emitted.device.type != "cpu" else cells[emitted.numpy() != REJECTED]
        self.remembered.append(Remembered(likeliest(logits, np.ascontiguousarray(used, np.int64)), cells))
