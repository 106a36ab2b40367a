"""Whose text a request drafts from, and what reports and the log say where nothing is drafted at all."""

import logging
import re
from typing import Any

import pytest
from conftest import Engines
from vllm import SamplingParams

from das.engine import worker as das_worker
from das.engine.settings import DasOptions
from das.general.errors import NotInstalled

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


def test_zero_is_said_in_reports_and_in_the_log(
    llm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says it where nobody ends a rollout. TRL's import lets vLLM's loggers say nothing but errors."""
    monkeypatch.setattr(logging.getLogger("vllm"), "level", logging.ERROR)
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=60, ignore_eos=True)
    undrafted = SamplingParams(max_tokens=60, ignore_eos=True, extra_args={"das_limit": 0, "das_problem": "p"})

    def said(asked: SamplingParams) -> list[str]:
        llm.generate([PROMPT] * 2, asked, use_tqdm=False)
        alarms: list[str] = llm.collective_rpc("das_end_rollout", args=(0,))[0].get("alarms", [])
        return alarms

    use(llm, "drafts")
    said(params)  # there is no history yet
    assert said(params) == said(undrafted) == []
    use(llm, "never", min_prob=1.0)
    assert said(undrafted) == []
    assert [line[:70] for line in said(params)] == [
        "nothing was drafted in 120 passes, though requests may draft. Usual ca"
    ]
    monkeypatch.setattr(das_worker, "MAX_PASSES", 100)
    assert not caplog.records
    for _ in range(3):
        llm.generate([PROMPT] * 2, params, use_tqdm=False)
    assert re.search(r"speculation: nothing was drafted in \d+ passes, though requests may draft. Usual c", caplog.text)


def test_drafts_for_which_an_engine_was_not_built_are_refused(llm: Any) -> None:
    """Scratch blocks of self-drafts would be the policy's own. Last, because the engine is gone afterwards."""
    llm.collective_rpc("das_use_proposer", args=("self", DasOptions(self_draft="w8a8", budget=BUDGET)))
    with pytest.raises(NotInstalled, match="build it for the method self_draft"):
        drafted(llm, 1)
