"""Exactness level 2 on generated requests with drafts that branch: the requests of test_sample_identity.py, and its
engines whose requests are stopped amid their drafts.

Each pass gives each request a random tree of up to 24 nodes, in which what it will emit is hidden.

Bugs made on purpose with which this test was seen to fail are listed in docs/exactness.md.
"""

import random
from multiprocessing.pool import Pool
from typing import Any

import pytest
from cases import BATCHES, MAX_MODEL_LEN, Case, answers
from conftest import Engines
from hypothesis import given
from hypothesis import strategies as st
from test_branches import core_of
from test_sample_identity import (
    ENGINES,
    EXAMPLES,
    LONG,
    STRAINED,
    baseline,
    baseline_answers,
    count_calls,
    examples,
    permuted,
)
from tree_proposer import TreeProposer

pytestmark = pytest.mark.slow
__all__ = ["baseline"]  # a fixture

SIZES = (0, 1, 2, 3, 8, 16, 24)


@pytest.mark.parametrize("engine", STRAINED)
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
    core = core_of(llm)
    runner = core.model_executor.driver_worker.worker.model_runner
    preempted = count_calls(core.scheduler, "_preempt_request")
    num_off_trunk = 0

    def drafted_equals_undrafted(batch: list[Case], order: random.Random) -> None:
        nonlocal num_off_trunk
        expected = baseline.apply(baseline_answers, (tiny_policy, batch))
        truth: dict[str, list[Any]] = {}
        for case, samples in zip(batch, expected, strict=True):
            truth.setdefault(str(case.problem), []).extend(sample["tokens"] for sample in samples)
        for permutation in (None, permuted(batch, order)):
            runner.drafter = TreeProposer(truth, SIZES, seed=order.randrange(1000))
            assert answers(llm, batch, permutation)[0] == expected
            num_off_trunk += runner.drafter.num_off_trunk

    drafted_equals_undrafted(LONG, random.Random(0))

    @examples(EXAMPLES // 4)
    @given(batch=BATCHES, order=st.randoms(use_true_random=False))
    def generated(batch: list[Case], order: random.Random) -> None:
        drafted_equals_undrafted(batch, order)

    generated()
    assert num_off_trunk > 40, "hardly any token of a branch was accepted: the test would prove nothing"
    if "preempted" in engine:
        assert len(preempted) > 20, "the KV cache was large enough: nothing was preempted"
