"""The verifier samples from the policy's logits with keyed noise, in the same way in passes with and without drafts.

A pass returns one row of logits for the next token of each request, and one more row after each drafted token. Every
row is treated as an ordinary decode row: the same masks, the same temperature, the same noise(seed, position). A
drafted token is accepted if and only if it equals the token sampled on the row before its own. The emitted tokens
therefore never depend on the draft (exactness level 2, docs/exactness.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from das.verify.layout import Layout
from das.verify.noise import (
    REJECTED,
    accept_inputs,
    device_accept,
    device_argmax,
    emitted_cells,
    keyed_argmax,
    keyed_verify,
    likeliest,
    noise_inputs,
)

GREEDY_BELOW = 1e-5  # temperature below which a request takes the argmax; vLLM uses the same threshold


def draw_inputs(
    layout: Layout, seeds: np.ndarray, positions: np.ndarray, greedy: np.ndarray | None, width: int
) -> dict[str, np.ndarray]:
    """Returns the arrays that `draw` needs on a device that is no CPU; `on_device` copies them there. For the arguments
    see `draw`."""
    if width == 1:
        return noise_inputs(seeds, positions, greedy)
    owner = layout.owner
    keys = noise_inputs(seeds[owner], positions[owner] + layout.offset, None if greedy is None else greedy[owner])
    return keys | accept_inputs(layout.num_drafted, width)


def draw(
    logits: torch.Tensor,
    layout: Layout,
    drafted: torch.Tensor,
    seeds: np.ndarray,
    positions: np.ndarray,
    greedy: np.ndarray | None,
    width: int,
    inputs: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Sample every row of consecutive requests, and accept each request's drafted tokens up to the first that differs.

    logits: processed, float32 [rows, vocab]. drafted: the drafted tokens of all requests, int32 [tokens]. seeds,
    positions, greedy: of each request; see keyed_verify. width: the most tokens that a request may emit; 1 if nobody
    drafted. inputs: `draw_inputs` on the logits' device; a CPU needs none.
    Returns the emitted tokens, int32 [requests, width], with REJECTED behind them.
    """
    on_host = logits.device.type == "cpu"
    if width == 1:
        tokens = keyed_argmax(logits, seeds, positions, greedy) if on_host else device_argmax(logits, inputs)
        return tokens[:, None].to(torch.int32)
    if on_host:
        return keyed_verify(logits, layout.num_drafted, drafted, seeds, positions, greedy, width)
    return device_accept(device_argmax(logits, inputs), drafted, inputs)


@dataclass(frozen=True, slots=True)
class Remembered:
    """The distributions from which a piece of a pass was sampled. A GPU may still be copying them: read them when the
    pass's tokens are on the host."""

    pairs: np.ndarray  # the distribution of each row of logits (das.drafter.distributions), uint32 [rows, PAIRS]
    cells: np.ndarray  # the row of each token that a request may emit, int64 [requests, width]


def of_one_pass(pieces: Sequence[Remembered]) -> Remembered:
    """Returns the pieces of a pass as one."""
    first_rows = np.cumsum([0, *(len(piece.pairs) for piece in pieces)])
    cells = np.concatenate([piece.cells + first for piece, first in zip(pieces, first_rows, strict=False)])
    return Remembered(pieces[0].pairs if len(pieces) == 1 else np.concatenate([piece.pairs for piece in pieces]), cells)


def of_passes_alike(passes: Sequence[Sequence[Remembered]]) -> list[Remembered]:
    """Returns what passes of the same requests remembered as if one pass had emitted all their tokens. passes: the
    pieces of each. [] if nothing was remembered."""
    if not all(passes):
        return []
    each = list(map(of_one_pass, passes))
    first_rows = np.cumsum([0, *(len(one.pairs) for one in each)])
    cells = np.concatenate([one.cells + first for one, first in zip(each, first_rows, strict=False)], axis=1)
    return [Remembered(np.concatenate([one.pairs for one in each]), cells)]


def remembered_of(pieces: Sequence[Remembered], rows: Sequence[int], counts: Sequence[int]) -> np.ndarray | None:
    """Returns the distributions from which emitted tokens were sampled, uint32 [sum(counts), PAIRS]: for each i, those
    of the first counts[i] tokens that row rows[i] of the batch emitted. None if no distributions were kept."""
    if not pieces:
        return None
    one = of_one_pass(pieces)
    is_emitted = np.arange(one.cells.shape[1]) < np.asarray(counts)[:, None]
    return one.pairs[one.cells[np.asarray(rows)][is_emitted]]


def kept_of(logits: torch.Tensor, emitted: torch.Tensor, layout: Layout) -> Remembered:
    """Returns the distributions of a piece's emitted tokens. logits: processed, [rows, vocab]. emitted: what `draw`
    returned."""
    cells = emitted_cells(layout.num_drafted, emitted.shape[1])
    used = cells.ravel() if emitted.device.type != "cpu" else cells[emitted.numpy() != REJECTED]
    return Remembered(likeliest(logits, np.ascontiguousarray(used, np.int64)), cells)
