"""Count, without an engine, how many drafted tokens of a recorded text would have been right.

A drafter gives logits for drafts that begin at each place of a response, given the true text before that place. From
the logits a token is drawn with the verifier's noise (das/models/coupled.py) and compared with the emitted token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from das.budget.acceptance import TokenCalibration
from das.models.coupled import CALIBRATION_MEMORY, CALIBRATION_TRUST, SCALES, squashed
from das.verify.noise import keyed_draft

LIKELIEST = SCALES.index(float("inf"))  # index of the scale that always draws the likeliest token
POSITIONS = (
    0,
    32,
    64,
    128,
    256,
    512,
)  # positions in a response at which the bins of `by_position` begin; the last bin has no end
BLOCK = 64  # the calibration learns after so many places, about as many as a pass verifies

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Drafts:
    """The drafts for one response, from every place at which the drafter can begin.

    first: position in the response of the first place. by_depth: logits [places, tokens] of drafted token 1, 2, ...;
    row t of entry j predicts the token at position first + t + j. A single entry is used for all depths.
    """

    first: int
    by_depth: Sequence[torch.Tensor]


class Counts:
    """Counts how many drafted tokens are right, over all places of all responses that were added."""

    def __init__(self, tokens: int):
        """Start with no counts. tokens: the length of the longest draft."""
        self.tokens = tokens
        # Each list has one array for each response.
        self._right: list[Ints] = []  # [places, scales]: number of drafted tokens before the first wrong one
        self._room: list[Ints] = []  # [places]: tokens from the place to the response's end
        self._margins: list[NDArray[np.float32]] = []  # [places, scales]: margins of the first drafted token

    def add(self, drafts: Drafts, response: Sequence[int], seed: int) -> None:
        """Count the drafts of one response. seed: the request's seed, which keys the noise.

        The logits must already be divided by the temperature.
        """
        emitted, first = np.array(response, np.int64), drafts.first
        places = len(emitted) - first
        if places < 1:
            return
        running = np.ones((places, len(SCALES)), bool)  # whether a draft has been right so far
        right = np.zeros((places, len(SCALES)), np.int64)
        for depth, (tokens, margins) in enumerate(self._drawn(drafts, len(emitted), seed)):
            if depth == 0:
                self._margins.append(margins)
            running[places - depth :] = False  # these drafts have reached the response's end
            running[: places - depth] &= tokens == emitted[first + depth :, None]
            right += running
        self._right.append(right)
        self._room.append(places - np.arange(places))

    def _drawn(self, drafts: Drafts, length: int, seed: int) -> Iterator[tuple[Ints, NDArray[np.float32]]]:
        """Yield for each depth the tokens drawn at every place and scale, and their margins, both [places, scales]."""
        scales, first = np.array(SCALES, np.float32), drafts.first
        alike = len(drafts.by_depth) == 1
        for depth in range(min(self.tokens, length - first)):
            if depth == 0 or not alike:
                logits = drafts.by_depth[depth]
                places = np.arange(first + depth, length, dtype=np.int64)
                tokens, margins = keyed_draft(logits, scales, np.full(len(places), seed, np.int64), places)
            yield (tokens[depth:], margins[depth:]) if alike else (tokens, margins)

    def share(self, scale: int) -> float:
        """Return the share of places at which the first drafted token equals the emitted one. scale: index into
        SCALES."""
        return float((np.concatenate(self._right)[:, scale] > 0).mean())

    @property
    def best(self) -> int:
        """Index of the scale at which the first drafted token is right most often. Engines learn to use it. If several
        are equally good, the smallest index is returned."""
        return int(np.argmax([self.share(scale) for scale in range(len(SCALES))]))

    def tokens_per_pass(self, scale: int, tokens: int) -> float:
        """Mean number of tokens that a pass emits if it verifies a draft of `tokens` tokens, over all places. scale:
        index into SCALES."""
        right, room = np.concatenate(self._right)[:, scale], np.concatenate(self._room)
        return float(np.minimum(np.minimum(right, tokens) + 1, room).mean())

    def by_depth(self, scale: int) -> list[float]:
        """Return for drafted token 1, 2, ... the share of right ones, among drafts whose earlier tokens are all right.
        scale: index into SCALES."""
        right, room = np.concatenate(self._right)[:, scale], np.concatenate(self._room)
        shares = []
        for depth in range(self.tokens):
            reached = (right >= depth) & (room > depth)
            if not reached.any():
                break
            shares.append(float((right[reached] > depth).mean()))
        return shares

    def by_position(self, scale: int, first: int) -> list[tuple[int, int, float]]:
        """Return for each bin of positions in the response: its begin, its number of places, its mean tokens per pass.

        first: position of the first place of every response. Drafts have their full length.
        """
        bins = []
        for begin, end in zip(POSITIONS, [*POSITIONS[1:], np.inf], strict=True):
            tokens = []
            for right, room in zip(self._right, self._room, strict=True):
                position = first + np.arange(len(room))
                inside = (position >= begin) & (position < end)
                tokens.append(np.minimum(right[inside, scale] + 1, room[inside]))
            together = np.concatenate(tokens)
            if len(together):
                bins.append((begin, len(together), float(together.mean())))
        return bins

    def reliability(self, scale: int) -> tuple[float, list[tuple[int, float, float]]]:
        """Compare the acceptance probability that an engine predicts for drafted tokens with the accepted share.

        The prediction is learned from the margin of the drawn token, place after place, and is made before the token is
        verified. Only the second half of the places is judged, because the first passes, in which an engine knows
        little, hardly matter in a long run. Returns the mean of |probability - accepted share of its bin|, and for each
        bin that is not empty: its number of tokens, their mean probability, and the accepted share.
        """
        margins = squashed(np.concatenate(self._margins)[:, scale])
        right = np.concatenate(self._right)[:, scale] > 0
        learned, check = TokenCalibration(CALIBRATION_TRUST, CALIBRATION_MEMORY), TokenCalibration()
        for begin in range(0, len(right), BLOCK):
            block = slice(begin, begin + BLOCK)
            if begin >= len(right) // 2:
                check.observe_tokens(learned(margins[block]), right[block])
            learned.observe_tokens(margins[block], right[block])
        bins = [(int(n), p / n, a / n) for n, p, a in check.counts.T.tolist() if n]
        return check.error, bins
