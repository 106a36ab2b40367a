"""An evaluation between two training rollouts: the training's drafter does not learn of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Engines, roll
from vllm import SamplingParams
from vllm.v1.worker.gpu.warmup import run_mixed_prefill_decode_warmup

from das.engine.rollouts.rollout import evaluation_seed, request_seed
from das.engine.worker import PlatformWorker

PROMPTS = [[7, 8, 9, 10 + problem] for problem in range(3)]
PROBLEMS = [str(i % 3) for i in range(12)]


def rollout(llm: Any, tick: int, held_out: bool = False, evaluation: bool = False) -> Any:
    """Tokens and report of a rollout; of other problems if held_out."""
    prompts = [[*PROMPTS[int(problem)], *([5] if held_out else [])] for problem in PROBLEMS]
    problems = [f"held out {problem}" if held_out else problem for problem in PROBLEMS]
    params = [SamplingParams(temperature=1.0, max_tokens=40, seed=100 * tick + i) for i in range(len(prompts))]
    tokens, _, report = roll(llm, prompts, params, problems, tick, evaluation)
    return tokens, report


COUNTS = ("passes", "drafted", "accepted", "history_tokens", "calibration_error")


def test_a_training_does_not_notice_an_evaluation(engines: Engines, repetitive_policy: str, tmp_path: Path) -> None:
    """Its requests draft from the history and from siblings, and leave nothing in the files of a checkpoint. That all
    files of a run are the same is tested by tests/trl/test_equal_runs.py."""
    # A budget that learns from what is accepted, and reads no clock: it climbs with each rollout.
    found, ladder = [], {"name": "ladder", "rungs": [2, 4, 6, 8, 10, 12], "up": 0.02, "down": 0.01, "patience": 1}
    for evaluated in (False, True):
        llm = engines.fresh(repetitive_policy, method="das", budget=ladder)
        reports = [rollout(llm, 1)[1]]
        if evaluated:
            tokens, of_known = rollout(llm, 1, evaluation=True)
            _, of_held_out = rollout(llm, 3, held_out=True, evaluation=True)
            assert of_known["accepted"] > of_held_out["accepted"] > 0
            assert of_known["history_tokens"] == reports[0]["history_tokens"] == sum(map(len, tokens))
            assert not of_held_out.get("alarms")
        reports.append(rollout(llm, 2)[1])
        folder = tmp_path / str(evaluated)
        folder.mkdir()
        llm.collective_rpc("das_save_state", args=(str(folder),))
        reports.append(rollout(llm, 3)[1])
        files = {path.name: dict(np.load(path)) for path in folder.iterdir()}
        found.append([[{name: report[name] for name in COUNTS} for report in reports], files])
    np.testing.assert_equal(found[1], found[0])


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
            llm.collective_rpc("das_begin_rollout", args=(len(PROBLEMS), True))
        llm.collective_rpc("das_meet_trainer")
        reports.append(rollout(llm, 2))
    (tokens, report), (other_tokens, other_report) = reports
    assert other_tokens == tokens
    assert {name: other_report[name] for name in ("passes", "drafted", "history_tokens")} == {
        name: report[name] for name in ("passes", "drafted", "history_tokens")
    }
    assert report["history_tokens"] > sum(map(len, tokens))
