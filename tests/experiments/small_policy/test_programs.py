"""Tiny programs are judged by their tests."""

import random

import pytest

from experiments.small_policy.arithmetic import Habits
from experiments.small_policy.programs.task import make_program_problems, worked_program
from rewards.code import CodeReward

MIX = {2: 1.0, 3: 1.0, 8: 1.0}
SURE = Habits(slip_careful=0.0, slip_quick=0.0)
SLIPPING = Habits(careful=0.0, slip_quick=1.0, check_again=0.0)


def test_too_many_problems_are_an_error() -> None:
    with pytest.raises(ValueError, match="too few"):
        make_program_problems(500, 0, {2: 1.0})


def test_worked_programs_are_right_unless_they_slip(code_reward: CodeReward) -> None:
    rng = random.Random(0)
    problems = make_program_problems(30, 1, MIX)
    tests = [problem.tests for problem in problems]
    assert code_reward([worked_program(problem, rng, SURE) for problem in problems], tests) == [1.0] * 30
    slipped = code_reward([worked_program(problem, rng, SLIPPING) for problem in problems], tests)
    assert sum(slipped) <= 10  # two slips may cancel out
    assert code_reward(["f = lambda x: x"] * 30, tests) == [0.0] * 30
