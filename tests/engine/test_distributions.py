"""Drafts from remembered distributions: they change no token, whatever is remembered, and they know the noise."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Engines, roll
from test_identity import PROBLEMS, PROMPTS, parameters, two_rollouts, undrafted
from vllm import SamplingParams

from das.engine import proposer
from das.verify.sampler import remembered_of

__all__ = ["undrafted"]  # a fixture
REMEMBER = {"drafter": {"remember": "distributions"}, "budget": {"name": "fixed", "tokens": 8}}
TREES = {"branch_blocks": 64, "extra": {"block_size": 32}}


def as_they_are(true: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return true


def drawn_at_random(true: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    tokens, levels = rng.integers(0, 250, true.shape), rng.integers(0, 32, true.shape)
    return (tokens << 5 | levels).astype(np.uint32)


def of_other_positions(true: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(true)


@pytest.mark.parametrize(
    ("wrong", "settings"),
    [
        (as_they_are, {"max_num_batched_tokens": 48}),  # prompts are processed in chunks
        (as_they_are, TREES),
        (drawn_at_random, {}),
        (of_other_positions, {}),
    ],
    ids=["chunked", "trees", "random", "stale"],
)
def test_whatever_is_remembered_changes_no_token(
    engines: Engines,
    tiny_policy: str,
    undrafted: Any,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[..., np.ndarray],
    settings: dict[str, Any],
) -> None:
    rng, handed_over = np.random.default_rng(0), []

    def changed(*args: Any) -> np.ndarray | None:
        true = remembered_of(*args)
        assert true is not None
        handed_over.append(len(true))
        return wrong(true, rng)

    monkeypatch.setattr(proposer, "remembered_of", changed)
    first, second, num_accepted = two_rollouts(engines.build(tiny_policy, method="das", **REMEMBER, **settings))
    assert (first, second) == undrafted
    assert num_accepted > 20
    assert sum(handed_over) > 500


def test_drafts_know_the_noise(engines: Engines, repetitive_policy: str) -> None:
    """The policy stays as it is, so the noise and the distributions of an earlier rollout say what comes."""
    accepted = {}
    for remember in ("tokens", "distributions"):
        llm = engines.build(repetitive_policy, method="das", **{**REMEMBER, "drafter": {"remember": remember}})
        passes = 0
        for step in range(4):
            params = [
                SamplingParams(temperature=1.0, max_tokens=60, seed=1000 * step + i, ignore_eos=True)
                for i in range(len(PROBLEMS))
            ]
            tokens, _, report = roll(llm, [PROMPTS[int(problem)] for problem in PROBLEMS], params, PROBLEMS, step + 1)
            passes = report["passes"]
        accepted[remember] = sum(map(len, tokens)) / passes - 1
    assert accepted["distributions"] > 1.3 * accepted["tokens"], accepted


def test_greedy_requests_draft_without_noise(engines: Engines, tiny_policy: str, undrafted: Any) -> None:
    llm = engines.build(tiny_policy, method="das", **REMEMBER)
    greedy = [params for params in parameters() if params.temperature == 0.0]
    problems = PROBLEMS[: len(greedy)]
    prompts = [PROMPTS[int(problem)] for problem in problems]
    roll(llm, prompts, greedy, problems, 1)
    tokens, _, report = roll(llm, prompts, greedy, problems, 2)
    assert report["passes"] < sum(map(len, tokens))
