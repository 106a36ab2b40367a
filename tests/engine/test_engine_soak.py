"""Rounds of tests/engine/engine_soak.py: what an engine holds stays within bounds, though nobody announces any."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
ROUNDS = 48  # of LIVE requests


def _soak(policy: str) -> list[dict[str, float]]:
    import engine_soak as soak
    from conftest import Engines

    soak.lower_the_bounds()
    llm = Engines().build(policy, method="das", drafter={"window": 4}, budget={"name": "marginal"})
    return list(islice(soak.soak(llm, seconds=300), ROUNDS))


def test_nothing_grows(in_process: Callable[..., Any], tiny_policy: str) -> None:
    import engine_soak as soak

    rows = in_process(_soak, tiny_policy)  # the bounds are lowered for the process
    most = {name: max(row[name] for row in rows) for name in rows[0]}
    third = len(rows) // 3
    response = soak.LIVE * 120  # the longest rollout of a round
    assert most["history_tick"] > 4, "the window was never full: the test proves nothing"
    assert most["weight_version"] >= 1
    # The tick moves when a rollout ends, which MAX_PASSES passes of up to 9 tokens for each request may delay.
    assert most["history_tokens"] <= 4 * soak.TOKENS_PER_TICK + 2 * soak.MAX_PASSES * soak.LIVE * 9 + response
    assert most["prompts"] <= soak.MAX_PROMPTS
    assert most["lengths"] <= soak.MAX_PROBLEMS
    assert most["passes"] <= 2 * soak.MAX_PASSES
    assert most["seeds"] <= 2 * soak.LIVE
    early, late = (max(row["index_kib"] for row in part) for part in (rows[len(rows) // 3 : -third], rows[-third:]))
    assert late <= 1.5 * early, "the index grows though the history does not"
