"""What once broke the drafter: a cost that grows with the problems, and wrong arguments."""

from typing import Any

import numpy as np
import pytest

from das.drafter import HistoryDrafter
from tests.drafter.counted import counted_core


def test_begin_costs_the_same_however_many_problems_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """In basic blocks that the core executes: no clock."""
    core = counted_core(monkeypatch)
    drafter = HistoryDrafter(window=2)
    costs = []
    for problem in range(5_000):
        before = core.executed()
        drafter.begin("r", f"{problem}", [1, 2, 3])
        costs.append(core.executed() - before)
        drafter.observe("r", [7, 8, 9])
        drafter.end("r")
    assert np.median(costs[-100:]) < 1.05 * np.median(costs[100:200])


def state(drafter: HistoryDrafter) -> list[Any]:
    return [
        drafter.history_tick,
        drafter.history_tokens,
        drafter.weights().tolist(),
        drafter.propose(["a"], [8]),
    ]


WRONG: dict[str, tuple[Any, ...]] = {
    "begin": (("a", "p", []), (7, "p", [1]), ("b", 7, [1]), ("b", None, [1]), (["b"], "p", [1]), ("b", "p", None),
              ("b", "p", "text"), ("b", "p", [0.5]), ("b", "p", [-1]), ("b", "p", [2**31]), ("b", "p", [2**70]),
              ("b", "p", [[1], [2, 3]]), ("b", "p", 7), ("b", "p", {1: 2})),
    "observe": (("x", [1]), (7, [1]), (["a"], [1]), ("a", None), ("a", 7), ("a", "text"), ("a", [0.5]), ("a", [2**70]),
                ("a", [None]), ("a", [-1]), ("a", np.array([2**31])), ("a", np.array(7)), ("a", np.array([[1]])),
                ("a", np.array(["x"]))),
    "observe_batch": ((["a"], None), (None, [[1]]), (7, 7), (["a"], 7), (["a"], [7]), (["a"], [[1], [2]]),
                      (["a", "b"], [[1], [1]]), (["a", "a"], [[1], ["x"]]), (["a", "a"], [[1], [-1]]),
                      ([["a"]], [[1]])),
    "propose": ((["x"], [1]), (["a", "a"], [1, 1]), (["a"], [1, 1]), (None, [1]), (["a"], None), (["a"], [1.5]),
                (["a"], ["1"]), (["a"], [2**70]), (["a"], [-1]), (["a"], [2**40]), ([["a"]], [1]), ([7], [1]),
                (["a"], [1], [None]), (["a"], [1], 0.5), (["a"], [1], [float("nan")]), (["a"], [1], ["x"]),
                (["a"], b"1"), (["a"] * 8, b"12345678"), (["a"], [1], b"1")),
    "end": (("x",), (7,), (["a"],), (None,)),
    "move_window": ((2,), (7.5,), ("7",), (None,), (2**63,), (-1,), (10**30,)),
    "save": ((7,), (None,)),
    "load": ((7,), (None,)),
}  # fmt: skip


@pytest.mark.parametrize(("method", "arguments"), [(name, args) for name in WRONG for args in WRONG[name]])
def test_wrong_arguments_are_one_line_and_change_nothing(method: str, arguments: tuple[Any, ...]) -> None:
    drafter = HistoryDrafter()
    drafter.move_window(3)
    drafter.begin("a", "p", [])
    drafter.observe("a", [1, 2, 3] * 20)
    if method == "load":
        drafter.end("a")
    else:
        before = state(drafter)
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        getattr(drafter, method)(*arguments)
    if method == "propose":
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            drafter.propose_batch(*arguments)
    if method != "load":
        assert state(drafter) == before


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("window", (-1, 2.5, "8", None)),
        ("min_prob", (1.5, "x", None, float("nan"))),
        ("max_candidates", (0, 2.5, None)),
        ("cross_problem_tokens", (-1, "x")),
        ("warm", (7,)),
    ],
)
def test_wrong_options_are_one_line(option: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=rf"^{option}[^\n]+$"):
            HistoryDrafter(**{option: value})
