"""What ranks give each other: each response once, to the engine that is asked for its problem. test_ranks.py trains."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from das import ranks
from das.engine.rollouts.rollout import PUT_ASIDE
from das.trl.shared_history import SharedHistory

Given = list[tuple[int, str, list[int]]]  # history tick, problem and tokens of what an engine was given


def rolled_out(problem: str, response: list[int], reason: str = "stop") -> tuple[Any, Any]:
    request = SimpleNamespace(prompts=[{"prompt_token_ids": [1, 2]}], problems=[problem])
    cost = SimpleNamespace(distributions=None)
    return request, SimpleNamespace(responses=[response], finish_reasons=[reason], requests=[cost])


class TwoRanks:
    """Two ranks in two threads, and what their engines were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, window: int = 2):
        self.given: list[Given] = [[], []]
        self.window = window
        self.own = threading.local()
        self.values: list[Any] = [None, None]
        self.met = threading.Barrier(2, timeout=10)
        monkeypatch.setattr(ranks, "gather", self.gather)
        monkeypatch.setattr(ranks, "rank", lambda: self.own.rank)
        self.shared = [self.new(0), self.new(1)]

    def new(self, rank: int) -> SharedHistory:
        def add(tick: int, texts: list[Any]) -> None:
            self.given[rank] += [(tick, text.problem, text.tokens.tolist()) for text in texts]

        return SharedHistory(self.window, add)

    def gather(self, value: Any) -> list[Any]:
        self.values[self.own.rank] = value
        self.met.wait()
        found = list(self.values)
        self.met.wait()
        return found

    def both(self, do: Callable[[SharedHistory], None]) -> None:
        def run(rank: int) -> None:
            self.own.rank = rank
            do(self.shared[rank])

        threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)


def test_an_engine_gets_each_response_of_others_once_and_of_the_asked_problem_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = TwoRanks(monkeypatch)
    two.shared[0].note(*rolled_out("p", [7, 8]))
    two.shared[0].note(*rolled_out("other", [9]))
    two.shared[0].note(*rolled_out("p", [5], PUT_ASIDE))  # it goes on in a later step
    two.both(SharedHistory.exchange)
    two.both(SharedHistory.exchange)
    for shared in two.shared:
        shared.prepare(["p", "p"])
        shared.prepare(["p"])
    assert two.given == [[], [(0, "p", [1, 2, 7, 8])]]
    assert two.shared[0].last.bytes > 0


def test_the_window_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    two = TwoRanks(monkeypatch, window=2)
    two.shared[0].note(*rolled_out("p", [7]))
    for tick in (1, 2):
        two.both(lambda shared, tick=tick: shared.end_rollout(tick))  # type: ignore[misc]
        two.both(SharedHistory.exchange)
    two.shared[1].prepare(["p"])
    assert two.given[1] == []


def test_a_resumed_rank_gives_and_gets_what_it_would_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    two = TwoRanks(monkeypatch)
    two.shared[0].note(*rolled_out("p", [7]))
    two.both(SharedHistory.exchange)
    two.shared[0].note(*rolled_out("q", [8]))  # finished, and not given away yet
    for rank, shared in enumerate(two.shared):
        (tmp_path / str(rank)).mkdir()
        shared.save(tmp_path / str(rank))
        two.shared[rank] = two.new(rank)
        two.shared[rank].load(tmp_path / str(rank))
    two.both(SharedHistory.exchange)
    two.shared[1].prepare(["p", "q"])
    assert two.given[1] == [(0, "p", [1, 2, 7]), (0, "q", [1, 2, 8])]
