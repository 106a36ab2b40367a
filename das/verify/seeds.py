"""Make a seed and a problem id for requests that bring none."""

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np


def made_seed(engine_seed: int, engine_rank: int, number: int) -> int:
    """Returns the seed of a request that brings none. It differs from those of all others, whatever the weights.

    engine_seed: vLLM's `seed`. engine_rank: data-parallel rank; engines with the same seed must not share noise.
    number: of the request among those of its engine that bring no seed, in the order in which they come.
    """
    mixed = hashlib.blake2b(struct.pack("<qqQ", engine_seed, engine_rank, number), digest_size=8).digest()
    return int.from_bytes(mixed, "little") >> 2  # vLLM numbers the seeds of n responses from this one on


def features_of(state: Any) -> list[str]:
    """Returns vLLM's hashes of a request's images and other features. state: vLLM's NewRequestData."""
    return [feature.identifier for feature in getattr(state, "mm_features", None) or ()]


def prompt_digest(tokens: Sequence[int], features: Sequence[str] = ()) -> int:
    """Returns 64 bits that identify a prompt. tokens: its token ids. features: see `features_of`."""
    digest = hashlib.blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=8)
    if features:
        digest.update(repr(list(features)).encode())
    return int.from_bytes(digest.digest(), "little")


def default_problem(tokens: Sequence[int], features: Sequence[str] = ()) -> str:
    """Returns the problem id of a request that brings none. Equal prompts with equal features get equal ids."""
    return f"prompt-{prompt_digest(tokens, features):016x}"
