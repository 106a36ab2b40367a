"""Engines that are lost between rollouts and beside the trainer: what they learned comes back, and none is left."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from conftest import PROMPTS, SMALL
from faults import ENGINE, LEFT_S
from vllm import SamplingParams

from das.cluster.cluster import Cluster
from das.cluster.connection import ClusterSettings
from das.cluster.pool import EnginePool
from das.engine.rollouts.rollout import RolloutRequest, request_seed
from das.engine.settings import EngineSettings
from experiments.run.processes import warm_context, warm_process

pytestmark = pytest.mark.slow


def train(policy: str) -> None:
    """What a trainer does first."""
    EnginePool(ClusterSettings(engines=1), EngineSettings(model=policy))


@pytest.fixture(scope="module")
def cluster(repetitive_policy: str) -> Iterator[Cluster]:
    settings = EngineSettings(model=repetitive_policy, method="das", **SMALL)
    warm_context()  # so that Ray is imported there before this process starts one: a fork must get on with its own
    cluster = Cluster(EnginePool(ClusterSettings(engines=2), settings))
    yield cluster
    cluster.close()
    assert not ray.is_initialized()


def rolled_out(cluster: Cluster, step: int) -> list[tuple[Any, ...]]:
    """Each response of a rollout, with what was drafted for it and how long it was expected to be."""
    problems = [str(row % 4) for row in range(16)]
    request = RolloutRequest(
        [{"prompt_token_ids": PROMPTS[int(problem)]} for problem in problems],
        SamplingParams(temperature=1.0, max_tokens=60),
        problems,
        [request_seed(0, 0, row) for row in range(16)],  # of every step: what came before comes again
        step,
        next_history_tick=step + 1,
    )
    rollout = cluster.roll_out(request)
    costs = [(cost.engine, cost.passes, cost.drafted, cost.predicted_length) for cost in rollout.finished]
    assert len({engine for engine, *_ in costs}) == 2
    return [(tokens, *cost[1:]) for tokens, cost in zip(rollout.responses, costs, strict=True)]


@pytest.mark.nightly
def test_new_engines_draft_as_those_that_wrote_the_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    """With their history, learned weights, calibration and lengths, though both engines were killed in between."""
    rolled_out(cluster, 0)
    rolled_out(cluster, 1)
    cluster.save_state(tmp_path)
    expected = rolled_out(cluster, 2)
    assert sum(drafted for _, _, drafted, _ in expected) > 0
    for engine in list(cluster.engines.engines.values()):
        os.kill(engine.pid, signal.SIGKILL)
    while cluster.engines.restarts < 2 or len(cluster.engines.ready) < 2:
        cluster.engines.call_all("policy")  # a call finds out
        cluster.engines.next_event()
    forgetful = rolled_out(cluster, 2)
    assert [tokens for tokens, *_ in forgetful] == [tokens for tokens, *_ in expected]
    assert forgetful != expected
    cluster.load_state(tmp_path)
    assert rolled_out(cluster, 2) == expected


def test_own_ray_is_reached_from_here_alone_and_no_engine_outlives_its_trainer(tiny_policy: str) -> None:
    warm = warm_process(train, tiny_policy)
    warm.start()
    trainer, started = psutil.Process(warm.pid), list[psutil.Process]()
    while not any(process.name().startswith(ENGINE) for process in started):
        assert warm.exitcode is None
        time.sleep(0.1)
        started = trainer.children(recursive=True)
    own = {process.pid for process in started} | {trainer.pid}
    listening = [each for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.pid in own]
    engines = [process for process in started if process.name().startswith(ENGINE)]
    warm.kill()
    assert {each.laddr.ip.removeprefix("::ffff:") for each in listening} == {"127.0.0.1"}, listening
    assert not psutil.wait_procs(engines, timeout=LEFT_S)[1]
