"""Find the seed of each request, and make a seed and a problem id for requests that bring none."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from das.verify.layout import RunningBatch
from das.verify.noise import splitmix64

MAX_PROMPTS = 2**18  # prompts that are counted one by one under the current weights (about 30 MB)
BUCKETS = 2**16  # counters for all further prompts


def features_of(state: Any) -> list[str]:
    """Returns vLLM's hashes of a request's images and other features. state: the runner's KnownRequest."""
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


class DefaultSeeds:
    """Seeds that are a pure function of (engine seed, weight version, prompt, occurrence).

    occurrence: how many requests had this prompt before, since the weights last changed. It counts every request that
    the engine began to run, also those that were aborted. So a run can be repeated, no two requests share a seed, and
    seeds depend neither on drafts nor on the cache nor on the number of other requests.

    engine_seed: vLLM's `seed`. engine_rank: data-parallel rank; engines with the same seed must not share noise.
    """

    def __init__(self, engine_seed: int, engine_rank: int = 0, max_prompts: int = MAX_PROMPTS):
        self.engine_seed = engine_seed
        self.engine_rank = engine_rank
        self.max_prompts = max_prompts
        self.weight_version = 0
        self._requests_of: dict[int, int] = {}  # by prompt digest
        self._requests_in: np.ndarray | None = None  # by bucket, of prompts that came when _requests_of was full

    def new_weights(self) -> None:
        """Count prompts from 0 again, because the engine's weights have changed."""
        self.weight_version += 1
        self._requests_of.clear()
        self._requests_in = None

    def draw(self, tokens: Sequence[int], features: Sequence[str] = ()) -> int:
        """Returns the seed of a new request with this prompt and these features, a signed 64-bit integer, and counts
        the request."""
        digest = prompt_digest(tokens, features)
        counted_alone = digest in self._requests_of or len(self._requests_of) < self.max_prompts
        if counted_alone:
            occurrence = self._requests_of.get(digest, 0)
            self._requests_of[digest] = occurrence + 1
        else:  # A bucket counts several prompts: a prompt's numbers have gaps, but no prompt gets a number twice.
            if self._requests_in is None:
                self._requests_in = np.zeros(BUCKETS, np.int64)
            occurrence = int(self._requests_in[digest % BUCKETS])
            self._requests_in[digest % BUCKETS] += 1
        parts = (self.engine_seed, self.engine_rank, self.weight_version, digest, occurrence, counted_alone)
        mixed = hashlib.blake2b(struct.pack("<qqqQq?", *parts), digest_size=8).digest()
        return int.from_bytes(mixed, "little", signed=True)


@dataclass(frozen=True, slots=True)
class _Seeded:
    """A request's seed, and the request's state when the seed was drawn."""

    state: Any  # the runner's KnownRequest
    params: Any
    turn: int  # turn of a streaming session, counted from 0
    seed: int


class RequestSeeds:
    """The seeds of a model runner's requests. defaults: makes the seeds of requests that bring none."""

    def __init__(self, defaults: DefaultSeeds):
        self.defaults = defaults
        self._seeded: dict[str, _Seeded] = {}  # by request id

    def of_batch(self, runner: RunningBatch) -> np.ndarray:
        """Returns the seeds of the batch's requests in batch order, int64 [requests]. Those of requests that the runner
        no longer knows are forgotten."""
        seeded = {name: self._seed(self._seeded.get(name), state) for name, state in runner.requests.items()}
        self._seeded = seeded
        # Seeds may be any 64 bits, with a sign or without.
        seeds = [seeded[name].seed & 0xFFFFFFFFFFFFFFFF for name in runner.input_batch.req_ids]
        return np.array(seeds, np.uint64).view(np.int64)

    def of(self, name: str) -> int | None:
        """Returns the seed of a request; None if the model runner did not know it when `of_batch` was last called."""
        return self._seeded[name].seed if name in self._seeded else None

    def _seed(self, before: _Seeded | None, state: Any) -> _Seeded:
        """Returns the seed of a request. before: the entry that its id had until now; None for a new id.

        A later request may have the same id. In a streaming session the same request gets further input, and its
        positions begin at 0 again; so each such turn has noise of its own.
        """
        params, turn = state.sampling_params, 0
        if before is not None and before.state is state:
            if before.params is params:
                return before
            turn = before.turn + 1
        if params.seed is None:
            seed = self.defaults.draw(state.prompt_token_ids or (), features_of(state))
        elif turn:
            mixed = splitmix64(splitmix64(np.array([params.seed & 0xFFFFFFFFFFFFFFFF], np.uint64)) ^ np.uint64(turn))
            seed = int(mixed[0])
        else:
            seed = params.seed
        return _Seeded(state, params, turn, seed)
