"""Pack the distributions that drafters remember: the likeliest tokens where each past token was sampled
(distributions.h).

A distribution is a row of PAIRS words, likeliest token first. A word is token << 5 | level, and the token's probability
is exp(-level / 4). Rows are padded with NO_PAIR. A row of only NO_PAIR is an unknown distribution.
"""

from __future__ import annotations

from typing import Any

import numpy as np

PAIRS = 4  # the most tokens of a distribution that are remembered
NO_PAIR = 2**32 - 1
LEVELS_PER_NAT = 4
MAX_LEVEL = 18  # highest level of a remembered token: its probability is at least .01
PAIR_TOKENS = 2**26  # only smaller token ids can be remembered in pairs


def unknown(count: int) -> np.ndarray:
    """Returns `count` unknown distributions: uint32 [count, PAIRS]."""
    return np.full((count, PAIRS), NO_PAIR, np.uint32)


def packed(tokens: np.ndarray, logprobs: np.ndarray) -> np.ndarray:
    """Pack tokens and log-probs, [n, PAIRS] each, likeliest first, into distributions: uint32 [n, PAIRS]."""
    levels = np.rint(-LEVELS_PER_NAT * np.maximum(logprobs, -32.0)).astype(np.uint32)
    listed = (levels <= MAX_LEVEL) & (tokens < PAIR_TOKENS)
    return np.where(listed, tokens.astype(np.uint32) << np.uint32(5) | levels, np.uint32(NO_PAIR))


def flat(distributions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Remove the padding, for files. Returns each row's number of words, uint8 [n], and all words, uint32 [words]."""
    listed = distributions != NO_PAIR
    return listed.sum(axis=1, dtype=np.uint8), distributions[listed]


def unflat(counts: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Undo `flat`. Raises ValueError for counts and pairs that do not belong together."""
    if counts.max(initial=0) > PAIRS or int(counts.sum()) != len(pairs):
        raise ValueError(f"its distributions do not add up to its {len(pairs)} pairs")
    distributions = unknown(len(counts))
    distributions[np.arange(PAIRS) < counts[:, None]] = pairs
    return distributions


def rows(distributions: Any, count: int) -> np.ndarray | None:
    """Check the distributions of `count` tokens. Returns them as a contiguous array, or None if they are None. Raises
    ValueError if they are anything else."""
    if distributions is None:
        return None
    array = np.asarray(distributions)
    if array.dtype != np.uint32 or array.shape != (count, PAIRS):
        raise ValueError(f"distributions must be uint32 [{count}, {PAIRS}], got {array.dtype} {list(array.shape)}")
    return np.ascontiguousarray(array)
