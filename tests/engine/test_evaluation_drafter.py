"""An evaluation between two training rollouts drafts for itself, and the training's drafter does not learn of it."""

from typing import Any

import pytest
from conftest import Engines, roll
from vllm import SamplingParams
from vllm.v1.worker.gpu.warmup import run_mixed_prefill_decode_warmup

from das.engine.rollouts.rollout import evaluation_seed, request_seed
from das.engine.worker import PlatformWorker

PROMPTS = [[7, 8, 9, 10 + problem] for problem in range(3)]
PROBLEMS = [str(i % 3) for i in range(12)]


def rollout(llm: Any, tick: int, held_out: bool = False) -> Any:
    """Tokens and report of a rollout; of other problems if held_out."""
    prompts = [[*PROMPTS[int(problem)], *([5] if held_out else [])] for problem in PROBLEMS]
    problems = [f"held out {problem}" if held_out else problem for problem in PROBLEMS]
    params = [SamplingParams(temperature=1.0, max_tokens=40, seed=100 * tick + i) for i in range(len(prompts))]
    tokens, _, report = roll(llm, prompts, params, problems, tick)
    return tokens, report


def test_an_evaluation_drafts_from_its_own_responses_alone(engines: Engines, repetitive_policy: str) -> None:
    """That the training goes on as if there had been none is tested by whole runs (tests/trl/test_equal_runs.py)."""
    llm = engines.fresh(repetitive_policy, method="das")
    rollout(llm, 1)
    llm.collective_rpc("das_begin_evaluation")
    tokens, report = rollout(llm, 0, held_out=True)
    llm.collective_rpc("das_end_evaluation")
    assert sum(map(len, tokens)) > report["passes"] > 0  # siblings were drafted from
    assert report["history_tokens"] == sum(map(len, tokens))


def test_made_up_requests_teach_nothing(
    engines: Engines, repetitive_policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU vLLM runs some when an engine starts, to compile its kernels: their texts are no history."""
    llm = engines.fresh(repetitive_policy, method="das")
    worker = llm.llm_engine.model_executor.driver_worker.worker

    def warm_up(worker: Any) -> bool:
        return run_mixed_prefill_decode_warmup(worker.model_runner, worker.execute_model, worker.sample_tokens, 8)

    monkeypatch.setattr(PlatformWorker, "compile_or_warm_up_model", warm_up)
    assert worker.compile_or_warm_up_model() is True, "vLLM has run them"
    tokens, report = rollout(llm, 1)
    assert report["history_tokens"] == sum(map(len, tokens))


def test_seeds_of_evaluations_belong_to_problem_and_sample() -> None:
    seeds = {
        evaluation_seed(run, step, problem, sample)
        for run in (0, 100) for step in (0, 1, 2) for problem in ("a", "b") for sample in (0, 1, 2)
    }  # fmt: skip
    assert len(seeds) == 36
    others = {request_seed(0, step, index, flag) for step in (0, 1) for index in range(8) for flag in (False, True)}
    assert not seeds & others
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_a_trainer_that_died_leaves_nothing_open(engines: Engines, repetitive_policy: str) -> None:
    """The next one of the same server drafts from the history of the trainings, not from an evaluation's."""
    reports = []
    for died in (False, True):
        llm = engines.fresh(repetitive_policy, method="das")
        rollout(llm, 1)
        if died:
            llm.collective_rpc("das_begin_evaluation")
            llm.collective_rpc("das_begin_rollout", args=(len(PROBLEMS),))
        llm.collective_rpc("das_meet_trainer")
        reports.append(rollout(llm, 2))
    (tokens, report), (other_tokens, other_report) = reports
    assert other_tokens == tokens
    assert {name: other_report[name] for name in ("passes", "drafted", "history_tokens")} == {
        name: report[name] for name in ("passes", "drafted", "history_tokens")
    }
    assert report["history_tokens"] > sum(map(len, tokens))
