"""A history beside an EAGLE-3 head in a real engine (das_eagle3)."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Engines, roll
from test_branches import core_of
from test_eagle3_engine import PROBLEMS, PROMPTS, head_folder
from vllm import SamplingParams

pytestmark = pytest.mark.slow
__all__ = ["head_folder"]  # a fixture
BUDGET = {"name": "fixed", "tokens": 12}
SAMPLING: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.6, "top_p": 0.9},
    "hot": {"temperature": 1.3, "repetition_penalty": 1.1},
    "min_p": {"min_p": 0.05},
    "greedy": {"temperature": 0.0},
}


def rollout(llm: Any, tick: int = 1, **sampling: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """The responses and the report."""
    params = [
        SamplingParams(**{"temperature": 1.0, "max_tokens": 60, "seed": index, "detokenize": False, **sampling})
        for index in range(8)
    ]
    tokens, _, report = roll(llm, PROMPTS * 2, params, PROBLEMS * 2, tick)
    return tokens, report


def tokens_per_pass(rolled: tuple[list[list[int]], dict[str, Any]]) -> float:
    tokens, report = rolled
    return sum(map(len, tokens)) / report["passes"]


def worker_of(llm: Any) -> Any:
    return core_of(llm).model_executor.driver_worker.worker


@pytest.fixture(scope="module")
def undrafted(engines: Engines, repetitive_policy: str) -> Any:
    llm = engines.build(repetitive_policy)
    return {name: rollout(llm, **sampling)[0] for name, sampling in SAMPLING.items()}


def build(engines: Engines, policy: str, head: Path, passes: int = 3, **settings: Any) -> Any:
    spec = {"model": str(head), "num_speculative_tokens": passes}
    return engines.build(policy, method="das_eagle3", speculative=spec, **{"budget": BUDGET, **settings})


def test_nothing_changes_and_both_draft(
    engines: Engines, repetitive_policy: str, head_folder: Path, undrafted: Any
) -> None:
    llm = build(engines, repetitive_policy, head_folder)
    for tick, (name, sampling) in enumerate(SAMPLING.items(), start=1):
        tokens, report = rollout(llm, tick, **sampling)
        assert tokens == undrafted[name]
        assert report["draft_passes"] > 0
        assert not report["alarms"]
        assert sum(map(len, tokens)) > 1.2 * report["passes"]
