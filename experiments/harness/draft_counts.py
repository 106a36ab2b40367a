"""Count, without an engine, how many tokens drafts of a text would have got right.

A drafter gives the logits of a draft that begins at any place of a response, given the true text before it. At every
place the token that it draws with the verifier's noise (das/verify/coupled.py) is compared with the emitted one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from das.budget.acceptance import TokenCalibration
from das.verify.coupled import CALIBRATION_MEMORY, CALIBRATION_TRUST, SCALES, squashed
from das.verify.noise import keyed_draft

LIKELIEST = SCALES.index(float("inf"))  # this scale draws the likeliest token
POSITIONS = (
    0,
    32,
    64,
    128,
    256,
    512,
)  # in a response, where the bins of `by_position` begin; the last one ends nowhere
BLOCK = 64  # places that are judged before the calibration learns from them, about what a pass verifies

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Drafts:
    """Drafts of one response, from every place at which the drafter can begin.

    first: position in the response of the first place. by_depth: logits of drafted token 1, 2, ...; row t of entry j
    predicts the token at position first + t + j. One entry stands for all depths where the depth changes nothing.
    """

    first: int
    by_depth: Sequence[torch.Tensor]


class Counts:
    """Counts of the tokens that a drafter drafted right, over all places of all texts that were added."""

    def __init__(self, tokens: int):
        """tokens: the length of the longest draft."""
        self.tokens = tokens
        # Each list has an array for each text; places are its rows.
        self._right: list[Ints] = []  # [places, scales]: drafted tokens before the first wrong one
        self._room: list[Ints] = []  # [places]: tokens from the place to the response's end
        self._margins: list[NDArray[np.float32]] = []  # [places, scales]: of the first drafted token

    def add(self, drafts: Drafts, response: Sequence[int], seed: int) -> None:
        """Count the drafts of one response. Logits are already divided by the temperature. seed: keys the noise."""
        emitted, first = np.array(response, np.int64), drafts.first
        places = len(emitted) - first
        if places < 1:
            return
        running = np.ones((places, len(SCALES)), bool)  # drafts that have been right so far
        right = np.zeros((places, len(SCALES)), np.int64)
        for depth, (tokens, margins) in enumerate(self._drawn(drafts, len(emitted), seed)):
            if depth == 0:
                self._margins.append(margins)
            running[places - depth :] = False  # they have come to the response's end
            running[: places - depth] &= tokens == emitted[first + depth :, None]
            right += running
        self._right.append(right)
        self._room.append(places - np.arange(places))

    def _drawn(self, drafts: Drafts, length: int, seed: int) -> Iterator[tuple[Ints, NDArray[np.float32]]]:
        """For each depth the tokens drawn at every place and scale, and their margins."""
        scales, first = np.array(SCALES, np.float32), drafts.first
        alike = len(drafts.by_depth) == 1
        for depth in range(min(self.tokens, length - first)):
            if depth == 0 or not alike:
                logits = drafts.by_depth[depth]
                places = np.arange(first + depth, length, dtype=np.int64)
                tokens, margins = keyed_draft(logits, scales, np.full(len(places), seed, np.int64), places)
            yield (tokens[depth:], margins[depth:]) if alike else (tokens, margins)

    def share(self, scale: int) -> float:
        """The share of places at which the first drafted token is the emitted one. scale: as an index into SCALES."""
        return float((np.concatenate(self._right)[:, scale] > 0).mean())

    @property
    def best(self) -> int:
        """The scale that is right most often, which an engine learns to use; the smallest of several."""
        return int(np.argmax([self.share(scale) for scale in range(len(SCALES))]))

    def tokens_per_pass(self, scale: int, tokens: int) -> float:
        """Mean tokens of a pass that verifies a draft of `tokens` tokens, over all places."""
        right, room = np.concatenate(self._right)[:, scale], np.concatenate(self._room)
        return float(np.minimum(np.minimum(right, tokens) + 1, room).mean())

    def by_depth(self, scale: int) -> list[float]:
        """For drafted token 1, 2, ...: the share that is right where all tokens before it are right."""
        right, room = np.concatenate(self._right)[:, scale], np.concatenate(self._room)
        shares = []
        for depth in range(self.tokens):
            reached = (right >= depth) & (room > depth)
            if not reached.any():
                break
            shares.append(float((right[reached] > depth).mean()))
        return shares

    def by_position(self, scale: int, first: int) -> list[tuple[int, int, float]]:
        """For each bin of positions in the response: where it begins, its places, and its tokens per pass.

        first: position of each text's first place. The longest drafts count.
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
        """Compare the probabilities that an engine gives drafted tokens with the share that is accepted.

        They are learned from the winner's margin while the places come, each given before its token is verified. The
        second half of the places is judged: a run is much longer than the text, so the first passes, in which an engine
        knows little, hardly count there. Returns the mean of |probability - accepted share of its bin|, and for
        each bin that is not empty its tokens, their mean probability, and the share that was accepted.
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
