"""Exactness level 1: the emitted tokens follow the policy's distribution, whatever is drafted. A million draws a case.

A Markov chain stands in for the policy: its logits depend on the token before, so the test notices a row of logits that
was taken from the wrong place. Chi-square over every (previous, next) pair, against probabilities computed in float64.

Bugs made on purpose with which these tests were seen to fail are listed in docs/log.md#faults-made-on-purpose.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from plain_batch import PlainRunner
from scipy.stats import chi2
from vllm import SamplingParams

pytestmark = pytest.mark.slow

VOCAB = 10
DRAWS = 1_000_000
REQUESTS = 2_000
LOGITS_V_V = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(5)) * 1.5  # [previous, next]
LIKELIEST = LOGITS_V_V.argmax(1).numpy()
LEAST_LIKELY = LOGITS_V_V.argmin(1).numpy()
CASES: list[dict[str, Any]] = [
    {"temperature": 0.6},
    {"temperature": 1.0},
    {"temperature": 1.5},
    {"temperature": 1.5, "top_k": 4},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.15},
    {"temperature": 0.6, "top_k": 6, "top_p": 0.95, "min_p": 0.02},
]


def probabilities(temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> np.ndarray:
    """Probabilities [previous, next] by the textbook, in vLLM's order: temperature, min-p, top-k, top-p."""
    table = LOGITS_V_V.double().numpy() / temperature
    table = np.exp(table - table.max(1, keepdims=True))
    table /= table.sum(1, keepdims=True)
    for row in table:
        row[row < min_p * row.max()] = 0.0
        if top_k:
            row[row < np.sort(row)[-top_k]] = 0.0
        row /= row.sum()
        order = np.argsort(-row)
        before = np.cumsum(row[order]) - row[order]  # total probability of the likelier tokens
        row[order[before >= top_p]] = 0.0
        row /= row.sum()
    return table


def follow(last: np.ndarray, rule: Callable[[np.ndarray], np.ndarray], draft_length: int) -> np.ndarray:
    """Drafts [requests, draft_length]; `rule` makes each token from the one before."""
    tokens = []
    for _ in range(draft_length):
        last = rule(last)
        tokens.append(last)
    return np.stack(tokens, 1)


def likely(rng: np.random.Generator, last: np.ndarray) -> np.ndarray:
    """A token drawn from the policy at temperature 1 after each of `last`."""
    return (rng.random((len(last), 1)) > CUMULATIVE[last]).sum(1)


Draft = Callable[[np.random.Generator, np.ndarray], np.ndarray]
CUMULATIVE = np.cumsum(probabilities(1.0), 1)[:, :-1]
DRAFTS: dict[str, Draft] = {  # full drafts; each request verifies a random number of their tokens, sometimes none
    "good": lambda rng, last: follow(last, lambda before: likely(rng, before), 6),
    "random": lambda rng, last: rng.integers(0, VOCAB, (len(last), 6)),
    "always_the_likeliest": lambda rng, last: follow(last, lambda before: LIKELIEST[before], 4),
    "always_the_least_likely": lambda rng, last: follow(last, lambda before: LEAST_LIKELY[before], 2),
    "repeating": lambda rng, last: follow(last, lambda before: before, 8),
}


def transitions(arguments: dict[str, Any], draft: Draft, draws: int, bits: bool) -> tuple[Any, int]:
    """Counts [previous, next] of the emitted tokens over many passes, and the number of accepted draft tokens.

    draws: the least number of tokens to emit. bits: whether the verifier keeps bits.
    """
    runner = PlainRunner([SamplingParams(seed=i, **arguments) for i in range(REQUESTS)], VOCAB, 8, keeps_bits=bits)
    rng = np.random.default_rng(3)
    counts = np.zeros((VOCAB, VOCAB), np.int64)
    last = np.zeros(REQUESTS, np.int64)
    num_accepted = 0
    while counts.sum() < draws:
        full_drafts = draft(rng, last)
        num_drafted = rng.integers(0, full_drafts.shape[1] + 1, REQUESTS)
        has_row = np.arange(full_drafts.shape[1] + 1)[None, :] <= num_drafted[:, None]
        logits = LOGITS_V_V[torch.from_numpy(np.concatenate([last[:, None], full_drafts], 1)[has_row])]
        drafts = [row[:length].tolist() for row, length in zip(full_drafts, num_drafted, strict=True)]
        output = runner.sample(logits, drafts)
        emitted = output.sampled_token_ids.numpy().astype(np.int64)  # [requests, 1 + longest draft], -1: none
        is_token = emitted >= 0
        previous = np.concatenate([last[:, None], emitted[:, :-1]], 1)
        np.add.at(counts, (previous[is_token], emitted[is_token]), 1)
        last = emitted[np.arange(REQUESTS), is_token.sum(1) - 1]
        num_accepted += int(is_token.sum()) - REQUESTS
        runner.emit(is_token.sum(1))
    return counts, num_accepted


def chi_square(counts: np.ndarray, table: np.ndarray) -> float:
    """p-value of `counts` under the Markov chain `table`. Fails at once for a token of probability 0."""
    assert counts[table == 0].sum() == 0
    expected = counts.sum(1, keepdims=True) * table
    frequent = expected > 5  # chi-square needs some counts in every cell
    statistic = ((counts - expected)[frequent] ** 2 / expected[frequent]).sum()
    return float(chi2.sf(statistic, frequent.sum() - frequent.any(1).sum()))


@pytest.mark.parametrize(
    ("arguments", "bits"),
    [(case, True) for case in CASES] + [(case, False) for case in CASES if {"top_k", "top_p"} & set(case)],
    ids=str,
)
def test_emitted_tokens_follow_the_policy(arguments: dict[str, Any], bits: bool) -> None:
    table = probabilities(**arguments)
    for name, draft in DRAFTS.items():
        counts, num_accepted = transitions(arguments, draft, DRAWS // len(DRAFTS), bits=bits)
        assert chi_square(counts, table) > 1e-4, name
        assert num_accepted > 1000 or name == "always_the_least_likely", name
