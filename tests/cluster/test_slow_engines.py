"""Engines that are given up as slow, played by a script: nobody waits for ever, whoever else dies."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from das.cluster.cluster import Cluster
from das.cluster.messages import Poll, Response
from das.cluster.paces import SLOW
from das.cluster.pool import Event, PoolEngine
from das.cluster.settings import ClusterSettings
from das.engine.build import EngineSettings
from das.engine.rollouts.report import RequestCost
from das.engine.rollouts.rollout import RolloutRequest

ENOUGH = 1000  # events after which the rollout counts as hanging


class ScriptedEngines:
    """Answers each call in its turn. `script` says how many of its requests an engine finishes now; None: it dies."""

    settings = ClusterSettings(3)
    engine = EngineSettings(model="", method="none", max_num_seqs=8)

    def __init__(self, script: Callable[[int], int | None]) -> None:
        self.engines = {number: PoolEngine(number, number, None, started=True) for number in range(3)}
        self.version = 0
        self.taken: list[tuple[int, int]] = []  # engine, request
        self._script = script
        self._calls: list[tuple[PoolEngine, str, tuple[Any, ...]]] = []
        self._held: dict[int, list[int]] = {number: [] for number in self.engines}
        self._passes = dict.fromkeys(self.engines, 0)
        self._events = 0

    @property
    def ready(self) -> list[PoolEngine]:
        return [engine for engine in self.engines.values() if not engine.doing]

    def settle(self) -> None:
        """All have the newest weights."""

    def call(self, engine: PoolEngine, method: str, *args: Any) -> None:
        engine.doing = method
        self._calls.append((engine, method, args))

    def next_event(self) -> Event | None:
        self._events += 1
        assert self._events < ENOUGH, "the rollout does not end"
        if not self._calls:
            return None
        engine, method, args = self._calls.pop(0)
        engine.doing = ""
        if method == "begin":
            return Event(engine, method, 0)
        held = self._held[engine.number]
        new = [request.index for request in args[0]]
        held += new
        self.taken += [(engine.number, index) for index in new]
        count = self._script(engine.number)
        if count is None:
            del self.engines[engine.number]
            return Event(engine, method, lost="its process died")
        self._passes[engine.number] += count
        done = [
            Response(held.pop(0), np.arange(3, dtype=np.int32), None, "stop", 0, RequestCost(1, 0))
            for _ in held[:count]
        ]
        engine.live = len(held)
        return Event(engine, method, Poll(done, len(held), self._passes[engine.number]))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    clock = itertools.count(0.0, 0.1)
    monkeypatch.setattr("das.cluster.cluster.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    idle: Any = ScriptedEngines(lambda engine: 0)
    return Cluster(idle)


def request(count: int) -> RolloutRequest:
    prompts = [{"prompt_token_ids": [1]}] * count
    return RolloutRequest(prompts, None, [str(i) for i in range(count)], [0] * count, 1, 1)


def test_a_slow_engine_goes_on_if_nobody_else_is_left(cluster: Cluster) -> None:
    """Engine 1 takes over what the slow engine 0 holds. Then engines 1 and 2 die, and engine 0 is alone with all."""
    turns = dict.fromkeys(range(3), 0)

    def script(engine: int) -> int | None:
        turns[engine] += 1
        if engine == 0:
            return 4 if turns[0] > 40 else 0
        if turns[2] > 60:
            return None
        return 4 if engine == 1 and turns[1] == 1 else 0

    played = ScriptedEngines(script)
    cluster.engines = played  # type: ignore[assignment]
    running = cluster._run(request(12), turn=0)
    assert sorted(running.responses) == list(range(12))
    assert any("slow" in row["event"] for row in running.timeline)
    assert {running.by[index] for engine, index in played.taken if engine == 2} == {0}
    assert cluster._paces[0] >= SLOW


def test_a_slow_engine_gets_less_in_the_next_rollout_until_it_is_fast_again(cluster: Cluster) -> None:
    dealt = []
    for slower in (8, 8, 1, 1):
        turns = itertools.count(1)

        def script(engine: int, turns: Any = turns, slower: int = slower) -> int:
            return 1 if engine or next(turns) % slower == 0 else 0

        played = ScriptedEngines(script)
        cluster.engines = played  # type: ignore[assignment]
        cluster._run(request(12), turn=0)
        dealt.append(sum(engine == 0 for engine, _ in played.taken))
    assert dealt[0] == dealt[3] == 4
    assert dealt[1] < 4
    assert dealt[2] < 4
