"""The worker that gives AsyncGRPOTrainer its samples: in order, held back behind a failure, and ended in time."""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.thread import _threads_queues
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from async_grpo_runs import STEPS, built, reward

from das.engine.rollouts.report import RequestCost, RolloutReport
from das.engine.rollouts.rollout import Rollout
from das.trl import patches as trl_trainers
from das.trl.ahead import fixed_lag_worker
from das.trl.ahead.fixed_lag_worker import FixedLagWorker
from das.trl.lag import FinishedRollout, Sync, done


def worker_without_engine(policy: str, folder: Path, rewarded: Callable[..., list[float]]) -> FixedLagWorker:
    """A FixedLagWorker at lag 2 whose rollouts are finished when they are submitted."""

    def submit(
        trainer: Any, rows: Sequence[Any], prompts: list[list[int]], step: int, new_weights: bool
    ) -> "Future[FinishedRollout]":
        size = len(rows)
        cost, report = RequestCost(3, 0, first_s=0.5, last_s=1.0), RolloutReport(passes=3 * size)
        responses, reasons = [[5, 6, 7]] * size, ["length"] * size
        rollout = Rollout(step, ["p"] * size, responses, reasons, [cost] * size, 1.0, report)
        return done(FinishedRollout(rollout, [[-1.0] * 3] * size, prompts, trainer.state.global_step, Sync(None, 0, 0)))

    with trl_trainers.built_on(torch.device("cpu")):
        trainer = built(policy, folder, rewarded, vllm_server_timeout=1)
    trainer.state.max_steps = STEPS
    generation: Any = SimpleNamespace(submit=submit, close=lambda: None)
    return FixedLagWorker(trainer, generation, lag=2, logged=())


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 6])
def test_a_failure_holds_back_all_later_samples(tiny_policy: str, tmp_path: Path, failing: int) -> None:
    calls = itertools.count(1)

    def once_wrong(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        if next(calls) == failing:
            raise ZeroDivisionError("once")
        return [1.0] * len(completion_ids)

    worker = worker_without_engine(tiny_policy, tmp_path, once_wrong)
    worker.start()  # three rollouts of two groups
    wait(worker._unscored)
    whole = (failing - 1) // 2  # rollouts before the one that fails
    assert [sample.group_id for sample in worker.rollout_buffer.queue] == [n // 4 for n in range(8 * whole)]
    with pytest.raises(ZeroDivisionError, match="once"):
        worker.update_model_version(2)
    worker.stop()


def test_what_is_done_is_forgotten_at_each_step(tiny_policy: str, tmp_path: Path) -> None:
    worker = worker_without_engine(tiny_policy, tmp_path, reward)
    worker.start()
    for worker._trainer.state.global_step in range(1, STEPS - 1):
        wait(worker._unscored)
        worker.update_model_version(worker._trainer.state.global_step + 1)
        assert len(worker._unscored) == 1
    wait(worker._unscored)
    samples = list(worker.rollout_buffer.queue)
    assert [sample.group_id for sample in samples] == [n // 4 for n in range(8 * (STEPS + 1))]
    assert [sample.model_version for sample in samples[::8]] == [1, 1, 1, 2, 3, 4, 5]
    worker.stop()


def test_a_reward_function_that_hangs_does_not_hold_the_end_up(
    tiny_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_lag_worker, "REWARDS_S", 0.2)
    others, hangs, answer = set(threading.enumerate()), threading.Event(), threading.Event()

    def judge(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        hangs.set()
        answer.wait()
        return [1.0] * len(completion_ids)

    worker = worker_without_engine(tiny_policy, tmp_path, judge)
    worker.start()
    rollouts = list(worker._unscored)
    assert hangs.wait(10)
    try:
        with pytest.warns(RuntimeWarning, match=r"a reward function still runs 0\.2 s after the training"):
            worker.stop()
        left = set(threading.enumerate()) - others
        assert all(thread.daemon for thread in left)  # for others Python's end waits,
        assert not left & set(_threads_queues)  # and for those of a ThreadPoolExecutor
    finally:
        answer.set()
    wait(rollouts)
    assert worker.rollout_buffer.empty()
