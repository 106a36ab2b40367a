"""The verifier samples from the policy's logits with keyed noise, in the same way in passes with and without drafts.

A pass returns one row of logits for the next token of each request, and one more row after each drafted token. Every
row is treated as an ordinary decode row: the same masks, the same temperature, the same noise(seed, position). A
drafted token is accepted if and only if it equals the token sampled on the row before its own. The emitted tokens
therefore never depend on the draft (exactness level 2, docs/exactness.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from das.drafter.distributions import PAIRS
from das.verify.noise import (
    REJECTED,
    device_argmax,
    device_keys,
    emitted_cells,
    keyed_argmax,
)

GREEDY_BELOW = 1e-5  # temperature below which a request takes the argmax; vLLM uses the same threshold


def draw_on_device(
    logits: torch.Tensor,
    inputs: torch.Tensor,
    starts: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    greedy: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """Does what keyed_verify does (noise.py) on any device, which alone may know how many drafted tokens each
    request has. All rows are sampled.

    inputs: the input token of each row: behind a request's first row, its drafted tokens. starts: where the rows of
    each request begin, and the number of rows, [requests + 1]. seeds, positions: of each row, int64. greedy: bool
    [rows]. width: the most tokens that a request may emit; 1 if nobody drafted. For the rest and the result see
    keyed_verify.
    """
    if logits.device.type == "cpu":
        tokens = keyed_argmax(logits, seeds.numpy(), positions.numpy(), greedy.numpy()).to(torch.int32)
    else:
        tokens = device_argmax(logits, device_keys(seeds, positions) | {"greedy": greedy}).to(torch.int32)
    if width == 1:
        return tokens[:, None]
    # The drafted token after each row; a request's last row has none, and fills the columns behind it.
    following = inputs.to(torch.int32).roll(-1).index_fill_(0, starts[1:].long() - 1, REJECTED)
    column = torch.arange(width, device=logits.device)
    cells = starts[:-1, None].long() + torch.minimum(column, starts.diff()[:, None] - 1)
    sampled = tokens[cells]
    # A token is emitted if every token before it equals the drafted one.
    matched = (sampled == following[cells]).cumprod(dim=1)
    sampled[:, 1:].masked_fill_(matched[:, :-1] == 0, REJECTED)
    return sampled


@dataclass(frozen=True, slots=True)
class Remembered:
    """The distributions from which a piece of a pass was sampled. A GPU may still be copying them: read them when the
    pass's tokens are on the host."""

    pairs: np.ndarray  # the distribution of each row of logits (das.drafter.distributions), uint32 [rows, PAIRS]
    num_drafted: np.ndarray  # of each request, whose rows are one more and lie together, int64 [requests]


def of_one_pass(pieces: Sequence[Remembered]) -> Remembered:
    """Returns the pieces of a pass as one."""
    if len(pieces) == 1:
        return pieces[0]
    return Remembered(*(np.concatenate([getattr(one, name) for one in pieces]) for name in ("pairs", "num_drafted")))


def of_passes_alike(passes: Sequence[Sequence[Remembered]]) -> list[Remembered]:
    """Returns what passes of the same requests without drafts remembered as if one pass had emitted all their tokens.
    passes: the pieces of each. [] if nothing was remembered."""
    if not all(passes):
        return []
    pairs = np.stack([of_one_pass(pieces).pairs for pieces in passes], axis=1)
    return [Remembered(pairs.reshape(-1, PAIRS), np.full(len(pairs), len(passes) - 1))]


def remembered_of(pieces: Sequence[Remembered], rows: Sequence[int], counts: Sequence[int]) -> np.ndarray | None:
    """Returns the distributions from which emitted tokens were sampled, uint32 [sum(counts), PAIRS]: for each i, those
    of the first counts[i] tokens that row rows[i] of the batch emitted. None if no distributions were kept."""
    if not pieces:
        return None
    one, emitted = of_one_pass(pieces), np.asarray(counts)
    first = (np.cumsum(one.num_drafted + 1) - (one.num_drafted + 1))[np.asarray(rows)]
    before = np.cumsum(emitted) - emitted
    kept: np.ndarray = one.pairs[np.repeat(first - before, emitted) + np.arange(int(emitted.sum()))]
    return kept


def used_rows(emitted: torch.Tensor, num_drafted: np.ndarray) -> np.ndarray:
    """Returns the rows of logits on which tokens were emitted, int64. emitted: these, with REJECTED behind them."""
    return np.ascontiguousarray(emitted_cells(num_drafted, emitted.shape[1])[emitted.numpy() != REJECTED], np.int64)
