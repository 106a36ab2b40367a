"""Draw the tokens of a piece of a pass: the noise of each row, and the acceptance of drafted tokens."""

from collections.abc import Mapping

import numpy as np
import torch

from das.verify.layout import Layout
from das.verify.noise import (
    accept_inputs,
    device_accept,
    device_argmax,
    emitted_cells,
    keyed_argmax,
    keyed_verify,
    keyed_walk,
    noise_inputs,
)

GREEDY_BELOW = 1e-5  # temperature below which a request takes the argmax; vLLM uses the same threshold


def draw_inputs(
    layout: Layout | None, seeds: np.ndarray, positions: np.ndarray, greedy: np.ndarray | None, width: int
) -> dict[str, np.ndarray]:
    """Returns the arrays that `draw` needs on a device that is no CPU; `on_device` copies them there. For the arguments
    see `draw`."""
    if layout is None:
        return noise_inputs(seeds, positions, greedy)
    if layout.parents is not None:  # keyed_walk copies what it needs
        return {}
    owner = layout.owner
    keys = noise_inputs(seeds[owner], positions[owner] + layout.offset, None if greedy is None else greedy[owner])
    return keys | accept_inputs(layout.num_drafted, width)


def draw(
    logits: torch.Tensor,
    layout: Layout | None,
    seeds: np.ndarray,
    positions: np.ndarray,
    greedy: np.ndarray | None,
    width: int,
    inputs: Mapping[str, torch.Tensor],
) -> tuple[torch.Tensor, np.ndarray | None]:
    """Sample every row of consecutive requests, and accept each request's drafted tokens up to the first that differs.

    logits: processed, float32 [rows, vocab]. layout: None if each request has one row. seeds, positions, greedy: of
    each request; see keyed_verify. width: the most tokens that a request may emit. inputs: `draw_inputs` on the
    logits' device; a CPU needs none.
    Returns the emitted tokens, int32 [requests, width], with REJECTED behind them, and the row of each, int64 of the
    same shape; None if there is one row for each request. Tokens of drafts that branch are on the host.
    """
    on_host = logits.device.type == "cpu"
    if layout is None:
        tokens = keyed_argmax(logits, seeds, positions, greedy) if on_host else device_argmax(logits, inputs)
        return tokens[:, None].to(torch.int32), None
    counts, drafted = layout.num_drafted, layout.draft_tokens
    if layout.parents is not None:
        return keyed_walk(logits, counts, drafted, layout.parents, layout.offset, seeds, positions, greedy, width)
    if on_host:
        emitted = keyed_verify(logits, counts, drafted, seeds, positions, greedy, width)
    else:
        emitted = device_accept(device_argmax(logits, inputs), drafted, inputs)
    return emitted, emitted_cells(counts, width)
