"""Whose text a request drafts from, and what the log says where nothing is drafted at all."""

from typing import Any

import pytest
from conftest import Engines
from vllm import SamplingParams

from das.engine.engine_config import DasOptions
from das.errors import NotInstalled

PROMPT = {"prompt_token_ids": [5, 6, 7, 8]}
BUDGET = {"name": "fixed", "tokens": 8}


def use(llm: Any, name: str, **drafter: Any) -> None:
    llm.collective_rpc(
        "das_use_proposer", args=(name, DasOptions(drafter={"min_prob": 0.005, **drafter}, budget=BUDGET))
    )


def drafted(llm: Any, times: int, extra_args: dict[str, Any] | None = None, **arguments: Any) -> list[int]:
    """Draft tokens of each of several equal requests, one after the other."""
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 60, "ignore_eos": True, **arguments})
    params.extra_args = extra_args
    counts = []
    for _ in range(times):
        llm.generate(PROMPT, params, use_tqdm=False)
        counts.append(llm.collective_rpc("das_end_rollout", args=(0,))[0]["drafted"])
    return counts


@pytest.fixture(scope="module")
def llm(engines: Engines, tiny_policy: str) -> Any:
    return engines.build(tiny_policy, method="das", budget=BUDGET)


def test_history_can_be_kept_from_other_requests(llm: Any) -> None:
    use(llm, "shared")
    first, second, third = drafted(llm, 3, temperature=1.0, seed=1)
    assert second > first + 20
    assert third > first + 20
    use(llm, "siblings", window=0, cross_problem_tokens=0)
    first, second, third = drafted(llm, 3, temperature=1.0, seed=1)
    assert first == second == third
    use(llm, "out of it")
    assert drafted(llm, 2, {"das_limit": 0}) == [0, 0]
    first, second = drafted(llm, 2, temperature=1.0, seed=1)
    assert second > first + 20, "the requests that asked for no drafts joined the history"


def test_the_log_says_that_nothing_is_drafted(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("das.engine.rollouts.alarm.SILENT_PASSES", 100)
    monkeypatch.setattr("das.engine.rollouts.alarm.logger.warning", lambda text, *values: said.append(text % values))
    use(llm, "drafts")
    drafted(llm, 3, temperature=1.0, seed=1)  # the first one has no history yet, for 59 passes
    drafted(llm, 2, {"das_limit": 0})
    assert said == []
    use(llm, "never", min_prob=1.0)
    assert drafted(llm, 4, temperature=1.0, seed=1) == [0, 0, 0, 0]  # 236 passes
    assert ["100 passes" in said[0], "200 passes" in said[1], len(said)] == [True, True, 2]


def test_drafts_for_which_an_engine_was_not_built_are_refused(llm: Any) -> None:
    """Scratch blocks of self-drafts would be the policy's own. Last, because the engine is gone afterwards."""
    llm.collective_rpc("das_use_proposer", args=("self", DasOptions(self_draft="w8a8", budget=BUDGET)))
    with pytest.raises(NotInstalled, match="build it for the method self_draft"):
        drafted(llm, 1)
