"""Texts that hurt a hash table.

The drafter's index (das/drafter/index.h) hashes n-grams with a key that is random for each drafter. Against the key
that is assumed here, each token of a crafted text costs a walk through the bigrams before it, which all fall into one
64th of the slots.
"""

from collections.abc import Iterator

import numpy as np

VOCAB = 50_000
SHARE = 64  # the table's part that the bigrams fall into is 1 / SHARE
TRIES = 1024  # tokens tried as the next one; TRIES / SHARE of them fit
FACTOR, START = 0x9E3779B97F4A7C15, 0  # the assumed key


def hash_step(hashes: np.ndarray, tokens: np.ndarray, factor: int = FACTOR) -> np.ndarray:
    """Returns what `hash_step` of index.h makes of hashes and their next tokens, both uint64 [n]."""
    mixed = (hashes ^ tokens) * np.uint64(factor) + tokens * np.uint64(0xD6E8FEB9)
    return (mixed >> np.uint64(32)) ^ (mixed & np.uint64(0xFFFFFFFF))


def crafted_text(tokens: int, seed: int) -> np.ndarray:
    """Returns a text, int64 [tokens], whose bigrams begin their search in the first 1 / SHARE of the slots, however
    large the table is, if the hash has the assumed key."""
    rng = np.random.default_rng(seed)
    text = np.empty(tokens, np.int64)
    text[0] = 0
    for at in range(1, tokens):
        tried = rng.integers(0, VOCAB, TRIES)
        hashes = hash_step(np.full(TRIES, START, np.uint64), tried.astype(np.uint64))
        hashes = hash_step(hashes, np.full(TRIES, text[at - 1], np.uint64))
        slots = hashes * np.uint64(0x85EBCA6B) & np.uint64(0xFFFFFFFF)
        text[at] = tried[np.argmax(slots < 2**32 // SHARE)]
    return text


def shuffled(text: np.ndarray, seed: int) -> np.ndarray:
    """Returns the tokens of a text in random order."""
    return np.random.default_rng(seed).permutation(text)


def structured_texts(tokens: int) -> Iterator[np.ndarray]:
    """Yields texts, int64 [tokens], of patterns that hurt a hash which mixes too little."""
    at = np.arange(tokens)
    for stride in (1, 2, 255, 256, 4096, 65536):
        yield at * stride % 2**31
    yield np.where(at % 2, at, 0)  # every other token is the same
    yield np.where(at % 2, at << 16, at)
    yield at % 128 * 128 + at // 128 % 128
