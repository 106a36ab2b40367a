"""Exactness level 2 on generated requests with self-drafts, and with a draft head beside a history: the requests and
engines of test_sample_identity.py.

Requests are preempted amid their drafts, prompts come in chunks, prefixes are shared, and requests end amid a draft.
"""

from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import pytest
from cases import LIMITS, MAX_MODEL_LEN, core_of
from conftest import Engines
from test_eagle3_engine import head_folder
from test_sample_identity import ENGINES, EXAMPLES, STRAINED, RandomLimits, baseline, check_batches

from das.engine.runner import head_passes

pytestmark = pytest.mark.slow
__all__ = ["baseline", "head_folder"]  # fixtures

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


@pytest.mark.parametrize("engine", [STRAINED[0], pytest.param(STRAINED[1], marks=pytest.mark.nightly)])
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
    draft_round = core_of(llm).model_executor.driver_worker.worker._das_proposer.draft_round
    draft_round.budget = RandomLimits([limit for limit in LIMITS if limit <= LONGEST])
    num_accepted, _ = check_batches(llm, baseline, policy, engine, EXAMPLES // 3)
    # After a preemption a head looks only at what it has read again, so fewer of its drafts are right.
    enough = 200 if options["method"] == "das_eagle3" else 300
    assert num_accepted > enough, "hardly anything was accepted: the test would prove nothing"
