"""A text whose bigrams all fall into one 64th of a hash table, for whoever knows the key of the hash.

The drafter's index (das/drafter/index.h) hashes n-grams with a key that is random for each drafter. Against the key
that is assumed here, each token of such a text costs a walk through the bigrams before it.
"""

import time
from collections.abc import Iterator

import numpy as np

from das.drafter import HistoryDrafter

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


def crafted_cost(tokens: int, seed: int) -> dict[str, float]:
    """Returns the time in us for each token that a drafter spends on a crafted text and on the same tokens in random
    order, each the best of three, and the ratio of the two."""
    crafted = crafted_text(tokens, seed)
    texts = {"crafted": crafted, "shuffled": shuffled(crafted, seed)}
    times: dict[str, list[float]] = {name: [] for name in texts}
    for _ in range(3):
        for name, text in texts.items():
            drafter = HistoryDrafter(remember="tokens")
            drafter.begin("r", "p", [])
            start = time.perf_counter()
            for at in range(0, tokens, 100):
                drafter.observe("r", text[at : at + 100])
                drafter.propose(["r"], [16])
            times[name].append((time.perf_counter() - start) / tokens * 1e6)
    best = {f"{name}_us_per_token": min(took) for name, took in times.items()}
    return {"tokens": tokens, **best, "ratio": best["crafted_us_per_token"] / best["shuffled_us_per_token"]}
