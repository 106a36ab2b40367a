"""What ranks give each other: each response once, to the engine that is asked for its problem. test_ranks.py trains."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from das.engine.rollouts.report import Finished
from das.trl.shared_history import SharedHistory

Given = list[tuple[int, str, list[int]]]  # history tick, problem and tokens of what an engine was given


def rolled_out(problem: str, response: list[int]) -> tuple[Any, Any]:
    request = SimpleNamespace(prompts=[{"prompt_token_ids": [1, 2]}], problems=[problem])
    return request, SimpleNamespace(finished=[Finished(len(response), 0, problem=problem, tokens=response)])


class TwoRanks:
    """Two ranks in one process, and what their engines were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, window: int = 2):
        self.monkeypatch = monkeypatch
        self.given: list[Given] = [[], []]
        self.window = window
        self.values: list[Any] = [None, None]
        self.met = threading.Barrier(2, timeout=10)
        self.shared = [self.new(0), self.new(1)]

    def new(self, rank: int) -> SharedHistory:
        def add(tick: int, texts: list[Any]) -> None:
            self.given[rank] += [(tick, text.problem, text.tokens.tolist()) for text in texts]

        def gather(value: bytes) -> list[bytes]:
            self.values[rank] = value
            self.met.wait()
            found = list(self.values)
            self.met.wait()
            return found

        self.monkeypatch.setenv("RANK", str(rank))
        return SharedHistory(add, gather)

    def end_rollouts(self, tick: int = 0) -> list[tuple[float, int]]:
        for shared in self.shared:
            shared.end_rollout(tick, tick - self.window + 1)
        return [shared.take() for shared in self.shared]


def test_the_training_goes_on_while_ranks_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose rollout ends early waits for nobody. Several rollouts may end before it takes what came."""
    two = TwoRanks(monkeypatch)
    early, late = two.shared
    for response in ([7], [8]):
        early.note(*rolled_out("p", response))
        early.end_rollout(0, 0)
    late.end_rollout(0, 0)
    late.end_rollout(0, 0)
    for shared in two.shared:
        shared.take()
    late.prepare(["p"])
    assert two.given == [[], [(0, "p", [1, 2, 7]), (0, "p", [1, 2, 8])]]


def test_a_resumed_rank_gets_what_it_would_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    two = TwoRanks(monkeypatch)
    two.shared[0].note(*rolled_out("p", [7]))
    two.end_rollouts()
    two.shared[0].note(*rolled_out("q", [8]))
    for shared in two.shared:
        shared.end_rollout(0, 0)
    for rank, shared in enumerate(two.shared):  # the exchange may still run
        (tmp_path / str(rank)).mkdir()
        shared.save(tmp_path / str(rank))
        two.shared[rank] = two.new(rank)
        two.shared[rank].load(tmp_path / str(rank))
    two.shared[1].prepare(["p", "q"])
    assert two.given[1] == [(0, "p", [1, 2, 7]), (0, "q", [1, 2, 8])]
