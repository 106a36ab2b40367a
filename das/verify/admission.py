"""Check which requests an engine of das can answer, and give them the seed or the problem that they do not bring."""

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

# Keys of SamplingParams.extra_args (`vllm_xargs` over HTTP): the request's problem id, the most tokens that one of its
# drafts may have (0: no drafts), and the name of the recorded response that it emits (das/verify/forced.py).
PROBLEM_KEY = "das_problem"
LIMIT_KEY = "das_limit"
FORCED_KEY = "das_forced"
MAX_PROBLEM_ID = 512  # characters; an id names a problem and is no place for its text
MAX_LIMIT = 2**31 - 1
OF_CLIENTS = (PROBLEM_KEY, LIMIT_KEY)
# What vLLM's model runner keeps in arrays of fixed size; more would stop the engine. It adds the policy's own end
# tokens to the 120.
MOST_TOKENS = {"allowed_token_ids": 1024, "logit_bias": 1024, "stop_token_ids": 120}
# Features that das's sampler cannot combine with drafts. Requests are refused, since the sampler would stop the engine.
REFUSED = {"logprob_token_ids": "ask for logprobs=N", "thinking_token_budget": "leave it unset"}


def admit(params: Any, may_force: bool = False, refuses_stops: bool = False) -> None:
    """Check a request's parameters. Raises VLLMValidationError with a one-line message if an engine of das cannot
    answer the request; vLLM's server then replies with HTTP status 400.

    may_force: whether the request may emit a recorded response. refuses_stops: whether it gets drafts of vLLM's own
    from vLLM 0.31, which keeps the tokens behind a stop string that ends amid a draft, so that drafts would change its
    tokens.
    """
    from vllm.exceptions import VLLMValidationError

    for name, instead in REFUSED.items():
        if getattr(params, name, None) is not None:
            raise VLLMValidationError(f"{name} cannot be combined with an engine of das: {instead}")
    seed, last = params.seed, params.n - 1  # vLLM numbers the seeds of n responses from `seed` on
    if seed is not None and not -(2**63) <= seed <= seed + last < 2**64:
        raise VLLMValidationError(f"seed must fit into 64 bits, for all n={params.n} responses, got {str(seed)[:80]}")
    extra = getattr(params, "extra_args", None) or {}
    # With a misspelled key a request would draft from the wrong history or without its limit, and nobody would notice.
    keys = (*OF_CLIENTS, FORCED_KEY) if may_force else OF_CLIENTS
    unknown = [str(key) for key in extra if str(key).startswith("das_") and key not in keys]
    if unknown:
        raise VLLMValidationError(
            f"{unknown[0][:80]!r} is no key that a request may have: choose {' or '.join(OF_CLIENTS)}"
        )
    problem, limit = extra.get(PROBLEM_KEY, ""), extra.get(LIMIT_KEY, 0)
    if not isinstance(problem, str) or len(problem) > MAX_PROBLEM_ID or not is_text(problem):
        raise VLLMValidationError(
            f"{PROBLEM_KEY} must be a string of at most {MAX_PROBLEM_ID} whole characters, got {ascii(problem)[:80]}"
        )
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= MAX_LIMIT:
        raise VLLMValidationError(
            f"{LIMIT_KEY} must be a whole number of tokens in 0..{MAX_LIMIT}, got {str(limit)[:80]!r}"
        )
    if refuses_stops and params.stop:
        raise VLLMValidationError(
            "stop strings with this method need vllm 0.32.0, since 0.31.0 keeps tokens behind them: use stop_token_ids"
        )
    stops = params.all_stop_token_ids if params.min_tokens else ()
    given = {"allowed_token_ids": params.allowed_token_ids, "logit_bias": params.logit_bias, "stop_token_ids": stops}
    for name, most in MOST_TOKENS.items():
        if len(given[name] or ()) > most:
            raise VLLMValidationError(
                f"{name} may name {most} tokens on vLLM's model runner, got {len(given[name])}: ask for fewer"
            )


def is_text(text: str) -> bool:
    """Returns whether the text can be sent to the engine. JSON can hold half a character, which UTF-8 cannot write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def default_problem(tokens: Sequence[int], features: Sequence[str] = ()) -> str:
    """Returns the problem id of a request that brings none. Equal prompts with equal features get equal ids.

    tokens: the prompt's token ids. features: see `features_of`.
    """
    digest = hashlib.blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=8)
    if features:
        digest.update(repr(list(features)).encode())
    return f"prompt-{digest.hexdigest()}"
