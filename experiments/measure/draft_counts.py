"""Count, without an engine, how many drafted tokens of a recorded text would have been right.

A drafter gives logits for drafts that begin at each place of a response, given the true text before that place. From
the logits a token is drawn with the verifier's noise (das/models/coupled.py) and compared with the emitted token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from das.verify.noise import keyed_argmax

COUPLED, LIKELIEST = KINDS = range(2)  # a draft of tokens drawn with the noise; of likeliest tokens

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Drafts:
    """The drafts for one response, from every place at which the drafter can begin.

    first: position in the response of the first place. by_depth: logits [places, tokens] of drafted token 1, 2, ...;
    row t of entry j predicts the token at position first + t + j. A single entry is used for all depths. scale: of the
    drafter's coupled drafts (das/models/coupled.py).
    """

    first: int
    by_depth: Sequence[torch.Tensor]
    scale: float


class Counts:
    """Counts how many drafted tokens are right, over all places of all responses that were added."""

    def __init__(self, tokens: int):
        """Start with no counts. tokens: the length of the longest draft."""
        self.tokens = tokens
        # Each list has one array for each response.
        self._right: list[Ints] = []  # [places, KINDS]: number of drafted tokens before the first wrong one
        self._room: list[Ints] = []  # [places]: tokens from the place to the response's end

    def add(self, drafts: Drafts, response: Sequence[int], seed: int) -> None:
        """Count the drafts of one response. seed: the request's seed, which keys the noise.

        The logits must already be divided by the temperature.
        """
        emitted, first = np.array(response, np.int64), drafts.first
        places = len(emitted) - first
        if places < 1:
            return
        running = np.ones((places, len(KINDS)), bool)  # whether a draft has been right so far
        right = np.zeros((places, len(KINDS)), np.int64)
        for depth, tokens in enumerate(self._drawn(drafts, len(emitted), seed)):
            running[places - depth :] = False  # these drafts have reached the response's end
            running[: places - depth] &= tokens == emitted[first + depth :, None]
            right += running
        self._right.append(right)
        self._room.append(places - np.arange(places))

    def _drawn(self, drafts: Drafts, length: int, seed: int) -> Iterator[Ints]:
        """Yield for each depth the tokens of drafts of both kinds at every place, [places, KINDS]."""
        first, alike = drafts.first, len(drafts.by_depth) == 1
        for depth in range(min(self.tokens, length - first)):
            if depth == 0 or not alike:
                logits = drafts.by_depth[depth]
                places = np.arange(first + depth, length, dtype=np.int64)
                coupled = keyed_argmax(logits * drafts.scale, np.full(len(places), seed, np.int64), places)
                tokens = torch.stack((coupled, logits.argmax(-1)), dim=1).numpy()
            yield tokens[depth:] if alike else tokens

    def share(self, kind: int) -> float:
        """Return the share of places at which the first drafted token equals the emitted one. kind: one of KINDS."""
        return float((np.concatenate(self._right)[:, kind] > 0).mean())

    def tokens_per_pass(self, kind: int, tokens: int) -> float:
        """Mean number of tokens that a pass emits if it verifies a draft of `tokens` tokens, over all places. kind: one
        of KINDS."""
        right, room = np.concatenate(self._right)[:, kind], np.concatenate(self._room)
        return float(np.minimum(np.minimum(right, tokens) + 1, room).mean())
