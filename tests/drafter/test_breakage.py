"""What once broke the drafter: doubled requests, wrong types, costs without bound."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from das.drafter import HistoryDrafter
from tests.drafter.counted import counted_core

ROOT = Path(__file__).resolve().parents[2]


# It may crash, so it has a process of its own.
ENDED_AND_REUSED = """
from collections import UserList
from das.drafter import HistoryDrafter
for prompt in ([], [1, 2, 3, 4, 5]):
    drafter = HistoryDrafter()
    class Meanwhile(UserList):  # what a caller's own sequence may do while propose runs
        def __iter__(self):
            drafter.end("x", keep=False)
            drafter.begin("y", "p", prompt)  # takes the place in the core that x has left
            drafter.observe("y", [1, 2, 3] * 9)
            return super().__iter__()
    drafter.begin("x", "p", [])
    try:
        print(drafter.propose(["x"], [16], Meanwhile([0.0])))
    except ValueError as error:
        print(error)
"""


def test_a_request_that_ends_while_its_draft_is_made() -> None:
    """Its place may go to another request's response, or to a prompt, which cannot be drafted for."""
    command = [sys.executable, "-X", "faulthandler", "-c", ENDED_AND_REUSED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "a request ended while a draft for it was being made\n" * 2


def test_a_request_named_twice_is_refused() -> None:
    drafter = HistoryDrafter()
    drafter.begin("y", "p", [1, 2, 3] * 20)
    drafter.observe("y", [1, 2, 3, 4, 1, 2, 3, 5, 6] * 50 + [1, 2, 3])
    before = drafter.propose(["y"], [16])
    for propose in (drafter.propose, drafter.propose_batch):
        with pytest.raises(ValueError, match="request 'y' is named twice"):
            propose(["y", "y"], [16, 16])
    assert drafter.propose(["y"], [16]) == before


# ---- costs, in basic blocks that the core executes: no clock ----


def test_begin_costs_the_same_however_many_problems_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_text_that_falls_into_few_slots_costs_no_more_than_its_shuffled_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The index hashes with a key of its own; with a multiplier of 1, the tokens of a pattern lie beside each other."""
    core, costs = counted_core(monkeypatch), []
    pattern = np.arange(4_000) * 65_536 % 2**31
    for text in (pattern, np.random.default_rng(0).permutation(pattern)):
        drafter = HistoryDrafter(cross_problem_tokens=0)
        drafter.begin("r", "p", [])
        before = core.executed()
        drafter.observe("r", text)
        drafter.propose(["r"], [16])
        costs.append(core.executed() - before)
    assert costs[0] < 2 * costs[1]


# ---- wrong types: one line, and nothing has changed ----


def state(drafter: HistoryDrafter) -> list[Any]:
    return [
        drafter.history_tick,
        drafter.history_tokens,
        drafter.weights().tolist(),
        drafter.propose(["a"], [8]),
    ]


WRONG: dict[str, tuple[Any, ...]] = {
    "begin": ((7, "p", [1]), ("b", 7, [1]), ("b", None, [1]), (["b"], "p", [1]), ("b", "p", None), ("b", "p", "text"),
              ("b", "p", [0.5]), ("b", "p", [-1]), ("b", "p", [2**31]), ("b", "p", [2**70]), ("b", "p", [[1], [2, 3]]),
              ("b", "p", 7), ("b", "p", {1: 2})),
    "observe": ((7, [1]), (["a"], [1]), ("a", None), ("a", 7), ("a", "text"), ("a", [0.5]), ("a", [2**70]),
                ("a", [None]), ("a", [-1]), ("a", np.array([2**31])), ("a", np.array(7)), ("a", np.array([[1]])),
                ("a", np.array(["x"]))),
    "observe_batch": ((["a"], None), (None, [[1]]), (7, 7), (["a"], 7), (["a"], [7]), (["a"], [[1], [2]]),
                      (["a", "b"], [[1], [1]]), (["a", "a"], [[1], ["x"]]), (["a", "a"], [[1], [-1]]),
                      ([["a"]], [[1]])),
    "propose": ((None, [1]), (["a"], None), (["a"], [1.5]), (["a"], ["1"]), (["a"], [2**70]), (["a"], [-1]),
                (["a"], [2**40]), ([["a"]], [1]), ([7], [1]), (["a"], [1], [None]), (["a"], [1], 0.5),
                (["a"], [1], [float("nan")]), (["a"], [1], ["x"]), (["a"], b"1"), (["a"] * 8, b"12345678"),
                (["a"], [1], b"1")),
    "end": ((7,), (["a"],), (None,)),
    "move_window": ((7.5,), ("7",), (None,), (2**63,), (-1,), (10**30,)),
    "save": ((7,), (None,)),
    "load": ((7,), (None,)),
}  # fmt: skip


@pytest.mark.parametrize(("method", "arguments"), [(name, args) for name in WRONG for args in WRONG[name]])
def test_wrong_arguments_are_one_line_and_change_nothing(method: str, arguments: tuple[Any, ...]) -> None:
    drafter = HistoryDrafter()
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
