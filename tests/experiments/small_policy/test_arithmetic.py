"""Problems and worked solutions are consistent in their arithmetic."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.small_policy.arithmetic import (
    LARGEST_VALUE,
    Habits,
    make_problems,
    worked_solution,
)

LINE = re.compile(r"^[a-h]\) \w+ \d(?:: | ~ )(\d+)([-+*])(\d+)=(\d+)$", re.MULTILINE)
FLAWLESS = Habits(slip_careful=0.0, slip_quick=0.0)


def boxed(solution: str) -> str:
    match = re.search(r"\\boxed\{(\d+)\}\.$", solution)
    assert match is not None
    return match.group(1)


def holds(line: tuple[str, str, str, str]) -> bool:
    left, symbol, right, result = line
    values = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
    return values[symbol] == int(result)


def test_mix_sets_the_number_of_steps() -> None:
    problems = make_problems(40, seed=0, mix={3: 0.5, 6: 0.5})
    assert {problem.question.count(")") for problem in problems} == {3, 6}


def test_exhausted_mix_is_an_error() -> None:
    with pytest.raises(ValueError, match="distinct"):
        make_problems(400, seed=0, mix={1: 1.0})


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000))
def test_flawless_solutions_are_right(seed: int) -> None:
    problem = make_problems(1, seed)[0]
    solution = worked_solution(problem, random.Random(seed), FLAWLESS)
    assert boxed(solution) == problem.answer
    assert all(holds(line) for line in LINE.findall(solution))


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000))
def test_slips_stay_in_range_and_decide_correctness(seed: int) -> None:
    problem = make_problems(1, seed)[0]
    solution = worked_solution(problem, random.Random(seed), Habits(slip_careful=0.4, slip_quick=0.4, check_again=0.0))
    lines = LINE.findall(solution)
    assert len(lines) == problem.question.count(")")
    assert all(0 <= int(line[3]) <= LARGEST_VALUE for line in lines)
    if all(holds(line) for line in lines):
        assert boxed(solution) == problem.answer


def test_noticed_slips_are_corrected() -> None:
    habits = Habits(careful=0.0, slip_quick=0.5, check_again=1.0, notice=1.0, max_passes=2)
    for problem in make_problems(50, seed=1):
        solution = worked_solution(problem, random.Random(0), habits)
        assert boxed(solution) == problem.answer
        first, _, second = solution.partition("Let me check.\n")
        assert ("was wrong" in second) == (not all(holds(line) for line in LINE.findall(first)))


def test_passes_are_limited() -> None:
    solution = worked_solution(make_problems(1, 0)[0], random.Random(0), Habits(check_again=1.0, max_passes=4))
    assert solution.count("Let me check.") == 3
