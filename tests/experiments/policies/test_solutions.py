"""Worked solutions are right unless they slip; later passes and checks notice slips."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.policies.problems import PUZZLES, Problem, make_problems
from experiments.policies.solutions import MANNERS, Manner, solution
from rewards.code import CodeReward
from rewards.maths import accuracy_reward

LINE = re.compile(r"^[a-h]\) \w+ \d(?:: | ~ )(\d+)([-+*])(\d+)=(\d+)$", re.MULTILINE)
EQUATION = re.compile(r"(\d+)\+(\d+)=(\d+)")
MIX = {2: 1.0, 3: 1.0, 8: 1.0}
CAREFUL, QUICK = 0, 1


def written(problem: Problem, seed: int, *manners: Manner) -> str:
    return solution(problem, random.Random(seed), manners)


def manner(kind: str, index: int, **chances: float) -> Manner:
    """A manner with other chances. All that are not named here are 0."""
    return replace(MANNERS[kind][index], chances=chances)


def holds(line: tuple[str, str, str, str]) -> bool:
    left, sign, right, result = line
    values = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
    return values[sign] == int(result)


def right(texts: list[str], problems: list[Problem]) -> float:
    return sum(accuracy_reward(texts, [problem.answer for problem in problems])) / len(problems)


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), index=st.sampled_from([CAREFUL, QUICK]))
def test_chains_without_slips_are_right(seed: int, index: int) -> None:
    problems = make_problems("arithmetic", 1, seed, MIX)
    text = written(problems[0], seed, manner("arithmetic", index, again=0.5, notice=0.2))
    assert right([text], problems) == 1
    assert all(holds(line) for line in LINE.findall(text))


def test_programs_are_right_unless_they_slip(code_reward: CodeReward) -> None:
    problems = make_problems("programs", 30, 1, MIX)
    tests = [problem.answer for problem in problems]
    sure, slipping = manner("programs", QUICK, again=0.5), manner("programs", QUICK, slip=1.0)
    assert code_reward([written(problem, 0, sure) for problem in problems], tests) == [1.0] * 30
    slipped = code_reward([written(problem, 0, slipping) for problem in problems], tests)
    assert sum(slipped) <= 10  # two slips may cancel out
    noticing = manner("programs", QUICK, slip=1.0, again=0.99, notice=1.0)
    assert sum(code_reward([written(problem, 0, noticing) for problem in problems], tests)) >= 28
    assert code_reward(["f = lambda x: x"] * 30, tests) == [0.0] * 30


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(list(PUZZLES)))
def test_plain_solutions_of_puzzles_are_right(seed: int, kind: str) -> None:
    puzzles = make_problems("puzzles", 1, seed, {kind: 1})
    text = written(puzzles[0], seed, *MANNERS["puzzles plain"])
    assert all(int(first) + int(second) == int(total) for first, second, total in EQUATION.findall(text))
    assert right([text], puzzles) == 1


def test_slips_make_wrong_answers_and_checks_notice_them() -> None:
    puzzles = make_problems("puzzles", 60, 1, {"pair": 1})

    def of(**chances: float) -> float:
        slipping = manner("puzzles", QUICK, slip=0.6, lucky=0.2, **chances)
        return right([written(puzzle, seed, slipping) for seed, puzzle in enumerate(puzzles)], puzzles)

    assert of() < 0.9
    assert of(check=1.0) == 1
