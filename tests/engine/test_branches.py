"""Drafts that branch: who gets trees, and what is counted. That they change no token: tests/identity/."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import das_runner_of
from conftest import Engines, roll
from vllm import SamplingParams

from das.engine.branching.scratch import with_scratch_blocks
from das.engine.engine_config import DasOptions
from das.errors import NotInstalled

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(6, 250, size=size).tolist() for size in (3, 40)]
FEW_BLOCKS: dict[str, Any] = {
    "method": "das",
    "branch_blocks": 8,
    "budget": {"name": "fixed", "tokens": 32},
    "drafter": {"window": 4, "min_prob": 0.0},
    "extra": {"block_size": 32},
}


def test_the_drafter_gives_the_last_requests_trees(engines: Engines, repetitive_policy: str) -> None:
    """Six requests draft chains; when at most two are left, they draft trees."""
    prompts = [PROMPTS[i % 2] for i in range(6)]
    problems = [str(i % 2) for i in range(6)]

    def rollouts(llm: Any) -> tuple[list[Any], list[dict[str, Any]]]:
        params = [[SamplingParams(temperature=1.0, max_tokens=20 + 20 * i, seed=9 * tick + i) for i in range(6)]
                  for tick in range(3)]  # fmt: skip
        answers = [roll(llm, prompts, params[tick], problems, tick) for tick in range(3)]
        return [tokens for tokens, *_ in answers], [report for *_, report in answers]

    budget = {"name": "fixed", "tokens": 16}
    branching = engines.build(repetitive_policy, method="das", budget=budget, branch_blocks=16)
    expected, trees = rollouts(branching)
    branching.collective_rpc("das_use_proposer", args=("another", DasOptions(budget=budget)))
    tokens, trees_of_another = rollouts(branching)
    assert tokens == expected
    as_built = DasOptions(drafter={"window": 4, "min_prob": 0.005}, budget=budget)
    branching.collective_rpc("das_use_proposer", args=("chains", as_built))
    das_runner_of(branching).drafter.draft_round.branch_blocks = 0
    tokens, chains = rollouts(branching)
    assert tokens == expected
    assert all(report["branches"] > 20 for report in trees_of_another), "the engine's blocks are any proposer's"
    assert all(report["branches"] == 0 for report in chains)
    assert all(report["branches"] > 20 for report in trees)
    assert sum(report["passes"] for report in trees) < sum(report["passes"] for report in chains)


def test_the_proposer_counts_what_was_verified(engines: Engines, repetitive_policy: str) -> None:
    """Trees for six requests share the blocks of one: nodes are dropped, and not counted."""
    llm = engines.build(repetitive_policy, **FEW_BLOCKS)
    proposer = das_runner_of(llm).drafter
    draft_round = proposer.draft_round
    draft_round.branch_blocks = 48
    observe, keep = draft_round.observe, proposer.keep
    counted: list[int] = []
    dropped: list[int] = []

    def count(requests: Any, num_drafted: Sequence[int], *args: Any) -> None:
        counted.append(sum(num_drafted))
        observe(requests, num_drafted, *args)

    def count_dropped(parents: dict[str, list[int]]) -> None:
        dropped.append(sum(len(proposer.parents[name]) - len(kept) for name, kept in parents.items()))
        keep(parents)

    draft_round.observe, proposer.keep = count, count_dropped
    for tick in range(2):
        counted.clear()
        params = [SamplingParams(temperature=1.5, max_tokens=60, seed=9 * tick + i) for i in range(6)]
        *_, report = roll(llm, PROMPTS[:1] * 6, params, ["0"] * 6, tick)
        assert sum(counted) == report["drafted"]
    assert sum(dropped) > 100, "hardly a node was dropped: the test would prove nothing"


def test_a_prompt_that_is_cached_has_no_rows_of_drafts(engines: Engines, repetitive_policy: str) -> None:
    """vLLM plans a draft for a new request of which all but one token is cached."""
    prompt = RNG.integers(6, 250, size=65).tolist()  # two blocks and a token
    llm = engines.fresh(repetitive_policy, **FEW_BLOCKS)
    for tick in range(2):
        params = [SamplingParams(temperature=1.0, max_tokens=20, seed=9 * tick + i) for i in range(4)]
        *_, report = roll(llm, [prompt] * 4, params, ["0"] * 4, tick)
    assert report["undrafted_rows"] > 0, "vLLM planned none: the test would prove nothing"
    assert report["step_live"][0] == report["step_tokens"][0] == 4
    assert report["drafted"] > 0


def test_what_was_not_checked_is_refused() -> None:
    config = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=None)] * 2, kv_cache_tensors=[None])
    with pytest.raises(NotInstalled, match=r"need a model that .*: set branch_blocks=0, or "):
        with_scratch_blocks(config, 8)
