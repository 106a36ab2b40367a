"""A seed and a problem id for requests that bring none."""

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

MAX_PROMPTS = 2**18  # prompts that are counted one by one under the current weights (about 30 MB)
BUCKETS = 2**16  # counters for all further prompts


def prompt_digest(tokens: Sequence[int]) -> int:
    """64 bits that name a prompt. tokens: its token ids."""
    return int.from_bytes(hashlib.blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=8).digest(), "little")


def default_problem(tokens: Sequence[int]) -> str:
    """The problem id of requests that bring none: equal prompts are one problem."""
    return f"prompt-{prompt_digest(tokens):016x}"


class DefaultSeeds:
    """Seeds that are a pure function of (engine seed, weight version, prompt, occurrence).

    occurrence: how many requests had this prompt since the weights last changed. It counts every request that the
    engine began to run, also those that were aborted, and it starts anew with new weights only. So a run repeats, no
    two requests share a seed, and neither drafts nor the cache nor the number of other requests matter.

    engine_seed: vLLM's. engine_rank: the engine's data-parallel rank; engines that share a seed must not share noise.
    """

    def __init__(self, engine_seed: int, engine_rank: int = 0, max_prompts: int = MAX_PROMPTS):
        self.engine_seed = engine_seed
        self.engine_rank = engine_rank
        self.max_prompts = max_prompts
        self.weight_version = 0
        self._requests_of: dict[int, int] = {}  # by prompt digest
        self._requests_in: np.ndarray | None = None  # by bucket, of prompts that came when _requests_of was full

    def new_weights(self) -> None:
        """The engine's weights have changed."""
        self.weight_version += 1
        self._requests_of.clear()
        self._requests_in = None

    def draw(self, tokens: Sequence[int]) -> int:
        """The seed of a new request with this prompt: a signed 64-bit integer."""
        digest = prompt_digest(tokens)
        counted_alone = digest in self._requests_of or len(self._requests_of) < self.max_prompts
        if counted_alone:
            occurrence = self._requests_of.get(digest, 0)
            self._requests_of[digest] = occurrence + 1
        else:  # A bucket counts several prompts: the numbers have gaps, but no prompt gets one twice.
            if self._requests_in is None:
                self._requests_in = np.zeros(BUCKETS, np.int64)
            occurrence = int(self._requests_in[digest % BUCKETS])
            self._requests_in[digest % BUCKETS] += 1
        parts = (self.engine_seed, self.engine_rank, self.weight_version, digest, occurrence, counted_alone)
        mixed = hashlib.blake2b(struct.pack("<qqqQq?", *parts), digest_size=8).digest()
        return int.from_bytes(mixed, "little", signed=True)
