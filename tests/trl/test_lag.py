"""What rolls out ahead: what waits in a checkpoint, what is refused. Trainings: test_equal_runs.py."""

import random
from pathlib import Path

import pytest

from das.engine.rollouts.report import ClusterReport, Finished, RolloutReport
from das.engine.rollouts.rollout import Rollout
from das.general.errors import EngineError
from das.trl.lag import FinishedRollout, Sync, ahead_problem, load_ahead, save_ahead


def finished(step: int, seed: int) -> FinishedRollout:
    rng = random.Random(seed)
    done = [
        Finished(
            1, 0, rng.random(), 1 / 3, problem=problem, tokens=[rng.randrange(2**31) for _ in range(length)],
            logprobs=[-rng.random() for _ in range(length)], finish_reason="length", turns=[2, 1],
        )
        for length, problem in zip((0, 3, 4), ("a", "b", "\0ü"), strict=True)
    ]  # fmt: skip
    cluster = ClusterReport(2, 1, 1, 0.5, 100, {"0": {"responses": 3}})
    report = RolloutReport(3, step_time_s=[1e-300], alarms=["x"], traces={"pass_speedup": [0.5]}, cluster=cluster)
    return FinishedRollout(Rollout(step, done, 1 / 7, report), [[1, 2], [3], [4, 5, 6]], step - 1, Sync(0.1, 0.05))


@pytest.mark.parametrize("count", [0, 3])
def test_what_waits_is_kept_to_the_bit(tmp_path: Path, count: int) -> None:
    ahead = [finished(step, seed) for seed, step in enumerate(range(5, 5 + count))]
    save_ahead(tmp_path, ahead)
    assert load_ahead(tmp_path) == ahead


def test_responses_to_other_prompts_are_refused_in_one_line() -> None:
    waiting = finished(5, 0)
    assert waiting.answer([[1, 2], [3], [4, 5, 6]]) == (
        waiting.rollout.responses,
        [each.logprobs for each in waiting.rollout.finished],
    )
    with pytest.raises(EngineError, match=r"^a step trains on other rows than rollout 5 has: .* order of the data$"):
        waiting.answer([[1, 2], [4, 5, 6], [3]])


def test_impossible_lags_are_refused_in_one_line() -> None:
    correct = {"vllm_importance_sampling_correction": True}
    assert not ahead_problem(0, {"vllm_importance_sampling_correction": False}, tools=False, processes=1)
    assert not ahead_problem(8, {**correct, "gradient_accumulation_steps": 4}, tools=False, processes=1)
    for arguments, tools, processes, words in (
        (correct, True, 1, "call tools"),
        ({**correct, "vllm_enable_sleep_mode": True}, False, 1, "vllm_enable_sleep_mode=false"),
        ({"vllm_importance_sampling_correction": False}, False, 1, "correction=true"),
        ({**correct, "num_iterations": 2}, False, 1, "2 micro-batches share one"),
        (correct, False, 2, "launch one"),
    ):
        problem = ahead_problem(1, arguments, tools, processes)
        assert words in problem
        assert "\n" not in problem
