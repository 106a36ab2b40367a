"""Exactness level 2 on generated requests with self-drafts: the requests and engines of test_sample_identity.py.

Requests are preempted amid their drafts, prompts come in chunks, prefixes are shared, and requests end amid a draft.
"""

import random
from multiprocessing.pool import Pool

import pytest
from cases import LIMITS, MAX_MODEL_LEN, Case, answers
from conftest import Engines
from hypothesis import given
from hypothesis import strategies as st
from test_branches import core_of
from test_sample_identity import (
    BATCHES,
    ENGINES,
    EXAMPLES,
    LONG,
    RandomLimits,
    baseline,
    baseline_answers,
    count_calls,
    examples,
    permuted,
)

pytestmark = pytest.mark.slow
__all__ = ["baseline"]  # a fixture

LONGEST = 8  # tokens of a draft: each is a pass


@pytest.mark.parametrize("method", ["self_draft", "das_self"])
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "max_num_seqs1"])
def test_self_drafts_change_nothing_in_any_request(
    engines: Engines, baseline: Pool, tiny_policy: str, engine: str, method: str
) -> None:
    llm = engines.build(
        tiny_policy,
        method=method,
        max_model_len=MAX_MODEL_LEN,
        drafter={"window": 2, "min_prob": 0.0},
        self_draft={"weights": "w4" if "chunked" in engine else "w8a8", "passes": None},
        **{**ENGINES[engine], "budget": {"name": "fixed", "tokens": LONGEST}},
    )
    core = core_of(llm)
    draft_round = core.model_executor.driver_worker.worker.model_runner.drafter.draft_round
    draft_round.budget = RandomLimits([limit for limit in LIMITS if limit <= LONGEST])
    preempted = count_calls(core.scheduler, "_preempt_request")
    history_tick, num_accepted = 0, 0

    def drafted_equals_undrafted(batch: list[Case], order: random.Random) -> None:
        nonlocal history_tick, num_accepted
        expected = baseline.apply(baseline_answers, (tiny_policy, batch))
        history_tick += 3
        for permutation in (None, permuted(batch, order)):
            responses, num_accepted_here = answers(llm, batch, permutation, history_tick)
            assert responses == expected
            num_accepted += num_accepted_here

    drafted_equals_undrafted(LONG, random.Random(0))

    @examples(EXAMPLES // 3)
    @given(batch=BATCHES, order=st.randoms(use_true_random=False))
    def generated(batch: list[Case], order: random.Random) -> None:
        drafted_equals_undrafted(batch, order)

    generated()
    assert num_accepted > 300, "hardly anything was accepted: the test would prove nothing"
    if "preempted" in engine:
        assert len(preempted) > 20, "the KV cache was large enough: nothing was preempted"
