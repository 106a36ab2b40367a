"""Exactness level 2 on generated requests with drafts that branch: the requests of test_sample_identity.py, and its
engines whose requests are stopped amid their drafts.

Each pass gives each request a random tree of up to 24 nodes, in which what it will emit is hidden.

Bugs made on purpose with which this test was seen to fail are listed in docs/log.md#faults-made-on-purpose.
"""

import random
from multiprocessing.pool import Pool
from typing import Any

import pytest
from cases import MAX_MODEL_LEN, Case, das_runner_of
from conftest import Engines
from test_sample_identity import ENGINES, EXAMPLES, STRAINED, baseline, check_batches
from tree_proposer import TreeProposer

pytestmark = pytest.mark.slow
__all__ = ["baseline"]  # a fixture

SIZES = (0, 1, 2, 3, 8, 16, 24)


@pytest.mark.parametrize("engine", [pytest.param(STRAINED[0], marks=pytest.mark.nightly), STRAINED[1]])
def test_trees_change_nothing_in_any_request(engines: Engines, baseline: Pool, tiny_policy: str, engine: str) -> None:
    own = {**ENGINES[engine], "budget": {"name": "fixed", "tokens": max(SIZES)}}
    own["extra"] = {"block_size": 32, **own.get("extra", {})}
    llm = engines.build(
        tiny_policy,
        method="das",
        max_model_len=MAX_MODEL_LEN,
        branch_blocks=8 if "chunked" in engine else 64,
        **own,
    )
    runner, proposers = das_runner_of(llm), []

    def new_trees(batch: list[Case], expected: list[Any], order: random.Random) -> None:
        truth: dict[str, list[Any]] = {}
        for case, samples in zip(batch, expected, strict=True):
            truth.setdefault(str(case.problem), []).extend(sample["tokens"] for sample in samples)
        runner.drafter = TreeProposer(truth, SIZES, seed=order.randrange(1000))
        proposers.append(runner.drafter)

    check_batches(llm, baseline, tiny_policy, engine, EXAMPLES // 4, before=new_trees)
    num_off_trunk = sum(proposer.num_off_trunk for proposer in proposers)
    assert num_off_trunk > 40, "hardly any token of a branch was accepted: the test would prove nothing"
