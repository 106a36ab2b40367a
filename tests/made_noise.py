"""Noise as C computes it, and distributions made from given log-probs."""

import numpy as np

from das.drafter.distributions import LEVELS_PER_NAT, MAX_LEVEL, NO_PAIR, PAIR_TOKENS
from das.verify import noise


def native_noise(key0: int, key1: int, vocab: int) -> np.ndarray:
    """The Gumbel noise of one row, computed by keyed.c, float32 [vocab]."""
    out = np.empty(vocab, np.float32)
    noise._call("keyed_noise", key0, key1, vocab, out)
    return out


def packed(tokens: np.ndarray, logprobs: np.ndarray) -> np.ndarray:
    """Pack tokens and log-probs, [n, PAIRS] each, likeliest first, into distributions: uint32 [n, PAIRS]."""
    levels = np.rint(-LEVELS_PER_NAT * np.maximum(logprobs, -32.0)).astype(np.uint32)
    listed = (levels <= MAX_LEVEL) & (tokens < PAIR_TOKENS)
    return np.where(listed, tokens.astype(np.uint32) << np.uint32(5) | levels, np.uint32(NO_PAIR))
