"""Exactness level 2 on generated requests with self-drafts, and with a draft head beside a history: the requests and
engines of test_sample_identity.py.

Requests are preempted amid their drafts, prompts come in chunks, prefixes are shared, and requests end amid a draft.
"""

import random
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import pytest
from cases import LIMITS, MAX_MODEL_LEN, Case, answers
from conftest import Engines
from hypothesis import given
from hypothesis import strategies as st
from test_branches import core_of
from test_eagle3_engine import head_folder
from test_sample_identity import (
    BATCHES,
    ENGINES,
    EXAMPLES,
    LONG,
    STRAINED,
    RandomLimits,
    baseline,
    baseline_answers,
    count_calls,
    examples,
    permuted,
)

from das.engine.runners.first import head_passes

pytestmark = pytest.mark.slow
__all__ = ["baseline", "head_folder"]  # fixtures

LONGEST = 8  # tokens of a draft: each is a pass


@pytest.mark.parametrize("method", ["self_draft", "das_self"])
@pytest.mark.parametrize("engine", STRAINED)
def test_self_drafts_change_nothing_in_any_request(
    engines: Engines, baseline: Pool, tiny_policy: str, engine: str, method: str
) -> None:
    options = {"self_draft": {"weights": "w4" if "chunked" in engine else "w8a8", "passes": None}}
    check(engines, baseline, tiny_policy, engine, method=method, **options)


@pytest.mark.parametrize("engine", STRAINED)
def test_a_head_beside_a_history_changes_nothing_in_any_request(
    engines: Engines,
    baseline: Pool,
    repetitive_policy: str,
    head_folder: Path,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_passes, "KEPT", 1)  # the least, two blocks, so that much is forgotten
    options = {"speculative": {"model": str(head_folder), "num_speculative_tokens": 3}}
    num_read, read = 0, head_passes.HeadPasses.read

    def counted(passes: Any, rows: Any, among: Any) -> Any:
        nonlocal num_read
        num_read += len(among)
        return read(passes, rows, among)

    monkeypatch.setattr(head_passes.HeadPasses, "read", counted)
    check(engines, baseline, repetitive_policy, engine, method="das_eagle3", **options)
    assert num_read > 300


def check(engines: Engines, baseline: Pool, policy: str, engine: str, **options: Any) -> None:
    """Compare tokens with those of `none`."""
    llm = engines.build(
        policy,
        max_model_len=MAX_MODEL_LEN,
        drafter={"window": 2, "min_prob": 0.0},
        **{**ENGINES[engine], **options, "budget": {"name": "fixed", "tokens": LONGEST}},
    )
    core = core_of(llm)
    draft_round = core.model_executor.driver_worker.worker._das_proposer.draft_round
    draft_round.budget = RandomLimits([limit for limit in LIMITS if limit <= LONGEST])
    preempted = count_calls(core.scheduler, "_preempt_request")
    history_tick, num_accepted = 0, 0

    def drafted_equals_undrafted(batch: list[Case], order: random.Random) -> None:
        nonlocal history_tick, num_accepted
        expected = baseline.apply(baseline_answers, (policy, batch))
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
    # After a preemption a head looks only at what it has read again, so fewer of its drafts are right.
    enough = 200 if options["method"] == "das_eagle3" else 300
    assert num_accepted > enough, "hardly anything was accepted: the test would prove nothing"
    if "preempted" in engine:
        assert len(preempted) > 20, "the KV cache was large enough: nothing was preempted"
