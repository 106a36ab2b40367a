"""Exactness level 2 on generated requests with self-drafts: the requests and engines of test_sample_identity.py.

Requests are preempted amid their drafts, prompts come in chunks, prefixes are shared, and requests end amid a draft.
"""

from multiprocessing.pool import Pool
from typing import Any

import pytest
from cases import LIMITS, MAX_MODEL_LEN, core_of
from conftest import Engines
from test_sample_identity import ENGINES, EXAMPLES, STRAINED, RandomLimits, baseline, check_batches

pytestmark = pytest.mark.slow
__all__ = ["baseline"]  # a fixture

LONGEST = 8  # tokens of a draft: each is a pass


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        (STRAINED[0], "self_draft"),
        pytest.param(STRAINED[0], "das_self", marks=pytest.mark.nightly),
        pytest.param(STRAINED[1], "self_draft", marks=pytest.mark.nightly),
        (STRAINED[1], "das_self"),
    ],
)
def test_self_drafts_change_nothing_in_any_request(
    engines: Engines, baseline: Pool, tiny_policy: str, engine: str, method: str
) -> None:
    options = {"self_draft": {"weights": "w4" if "chunked" in engine else "w8a8", "passes": None}}
    check(engines, baseline, tiny_policy, engine, method=method, **options)


def check(engines: Engines, baseline: Pool, policy: str, engine: str, **options: Any) -> None:
    """Compare tokens with those of `none`."""
    llm = engines.build(
        policy,
        max_model_len=MAX_MODEL_LEN,
        drafter={"window": 2, "min_prob": 0.0},
        **{**ENGINES[engine], **options, "budget": {"name": "fixed", "tokens": LONGEST}},
    )
    draft_round = core_of(llm).model_executor.driver_worker.worker._das_proposer.draft_round
    draft_round.budget = RandomLimits([limit for limit in LIMITS if limit <= LONGEST])
    num_accepted, _ = check_batches(llm, baseline, policy, engine, EXAMPLES // 3)
    assert num_accepted > 300, "hardly anything was accepted: the test would prove nothing"
