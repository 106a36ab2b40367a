"""Pack the distributions that drafters remember: the likeliest tokens where each past token was sampled
(distributions.h).

While an engine drafts, a distribution is a row of PAIRS words, likeliest token first. A word is token << 5 | level, and
the token's probability is exp(-level / 4). Rows are padded with NO_PAIR. A row of only NO_PAIR is an unknown
distribution. Files and messages hold the compact form, `Distributions`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

PAIRS = 4  # the most tokens of a distribution that are remembered
NO_PAIR = 2**32 - 1
LEVELS_PER_NAT = 4
MAX_LEVEL = 18  # highest level of a remembered token: its probability is at least .01
MOST_DROPPED = 2**16  # tokens of a pass that an engine may have dropped behind a response's end
PAIR_TOKENS = 2**26  # only smaller token ids can be remembered in pairs
UNKNOWN, UNLISTED = 30, 31  # levels in `Distributions.heads`


def unknown(count: int) -> np.ndarray:
    """Returns `count` unknown distributions: uint32 [count, PAIRS]."""
    return np.full((count, PAIRS), NO_PAIR, np.uint32)


def rows(distributions: Any, count: int) -> np.ndarray | None:
    """Check the distributions of `count` tokens. Returns them as a contiguous array, or None if they are None. Raises
    ValueError if they are anything else."""
    if distributions is None:
        return None
    array = np.asarray(distributions)
    if array.dtype != np.uint32 or array.shape != (count, PAIRS):
        raise ValueError(f"distributions must be uint32 [{count}, {PAIRS}], got {array.dtype} {list(array.shape)}")
    return np.ascontiguousarray(array)


@dataclass(frozen=True)
class Distributions:
    """The distributions of a text's tokens in compact form, as distributions.h stores them beside the tokens.

    heads: for each token, the number of other pairs << 5 | the token's own level, uint8 [tokens]. The level is UNLISTED
    if the token is not among the likeliest, and UNKNOWN if its distribution is unknown. others: the other pairs of all
    tokens, one token after the other, uint32 [pairs]. Raises ValueError if the two do not belong together.
    """

    heads: np.ndarray
    others: np.ndarray

    def __post_init__(self) -> None:
        num_pairs = self._num_others + (self._levels < UNKNOWN)
        if num_pairs.max(initial=0) > PAIRS or int(self._num_others.sum()) != len(self.others):
            raise ValueError(f"its distributions do not add up to its {len(self.others)} pairs")

    @classmethod
    def of(cls, tokens: np.ndarray, distributions: np.ndarray) -> Self:
        """Make the compact form. tokens: int32 [n]. distributions: uint32 [n, PAIRS]."""
        listed = distributions != NO_PAIR
        is_own = listed & (distributions >> np.uint32(5) == tokens[:, None].astype(np.uint32))
        first_own = distributions[np.arange(len(tokens)), is_own.argmax(axis=1)]
        levels = np.where(is_own.any(axis=1), first_own & np.uint32(31), np.uint32(UNLISTED))
        levels[~listed.any(axis=1)] = UNKNOWN
        is_other = listed & ~is_own
        heads = is_other.sum(axis=1, dtype=np.uint32) << np.uint32(5) | levels
        return cls(heads.astype(np.uint8), distributions[is_other])

    @classmethod
    def unknown(cls, count: int) -> Self:
        """Returns the unknown distributions of `count` tokens."""
        return cls(np.full(count, UNKNOWN, np.uint8), np.empty(0, np.uint32))

    def rows(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the distributions as uint32 [tokens, PAIRS], each token itself before the others of its row.

        tokens: the text, int32 [tokens].
        """
        found = unknown(len(tokens))
        has_own = self._levels < UNKNOWN
        place = np.arange(PAIRS) - has_own[:, None].astype(np.int64)
        found[(place >= 0) & (place < self._num_others[:, None])] = self.others
        found[has_own, 0] = tokens[has_own].astype(np.uint32) << np.uint32(5) | self._levels[has_own]
        return found

    def fitted(self, count: int) -> Self:
        """Returns the distributions of the first `count` tokens. Those of tokens beyond the text's end are unknown."""
        missing = count - len(self.heads)
        if missing <= 0:
            return self if not missing else self.divided([count, -missing])[0]
        return type(self)(np.append(self.heads, np.full(missing, UNKNOWN, np.uint8)), self.others)

    def within(self, tokens: np.ndarray, vocabulary: int) -> Self:
        """Returns the distributions without the pairs of token ids that the vocabulary of another policy lacks.

        tokens: the text, int32 [tokens].
        """
        if self.others.max(initial=0) >> np.uint32(5) < vocabulary:
            return self
        kept = self.rows(tokens)
        kept[kept >> np.uint32(5) >= vocabulary] = NO_PAIR
        return self.of(tokens, kept)

    def divided(self, counts: Sequence[int]) -> list[Self]:
        """Returns the distributions of each of several texts, as copies. counts: the number of tokens of each."""
        token_ends = np.cumsum([0, *counts])
        pair_ends = np.concatenate([[0], np.cumsum(self._num_others, dtype=np.int64)])[token_ends]
        return [
            type(self)(self.heads[start:end].copy(), self.others[first:last].copy())
            for (start, end), (first, last) in zip(pairwise(token_ends), pairwise(pair_ends), strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """The number of bytes of memory."""
        return self.heads.nbytes + self.others.nbytes

    def text(self) -> str:
        """Returns a short text for JSON, which `from_text` reads.

        The pairs' lowest bytes come first, then their second bytes and so on, because this compresses better.
        """
        planes = self.others.astype("<u4").view(np.uint8).reshape(-1, 4).T
        count = np.array(len(self.heads), "<u4")
        return base64.b64encode(zlib.compress(count.tobytes() + self.heads.tobytes() + planes.tobytes())).decode()

    @classmethod
    def from_text(cls, text: Any, count: int) -> Self:
        """Undo `text`, and fit the distributions to a response of `count` tokens: an engine may have dropped the last
        tokens of a pass. Raises ValueError with a one-line message for anything but a text of this method, and before
        it is unpacked for one that is too long for such a response.
        """
        most = 4 + (count + MOST_DROPPED) * (1 + 4 * PAIRS)  # bytes
        try:
            packed = zlib.decompressobj()
            content = packed.decompress(base64.b64decode(text, validate=True), most)
            if not packed.eof:
                raise ValueError
            (written,) = np.frombuffer(content, "<u4", 1).tolist()
            heads = np.frombuffer(content, np.uint8, written, offset=4)
            planes = np.frombuffer(content, np.uint8, offset=4 + written).reshape(4, -1)
        except (TypeError, ValueError, zlib.error):
            raise ValueError("its distributions cannot be read") from None
        return cls(heads, planes.T.copy().view("<u4").astype(np.uint32).ravel()).fitted(count)

    @property
    def _levels(self) -> np.ndarray:
        return self.heads & np.uint8(31)

    @property
    def _num_others(self) -> np.ndarray:
        return self.heads >> np.uint8(5)
