"""Tiny programs are judged by their tests.

They do not change the cache keys of other policies.
"""

import inspect
import random
from pathlib import Path

import pytest

from experiments.small_policy import programs, small
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


@pytest.mark.parametrize("config", [small.ARITHMETIC, small.SmallPolicyConfig()])
def test_other_policies_keep_their_keys(config: small.SmallPolicyConfig) -> None:
    """Their cache keys cover the files beside small.py and beside their corpus, so this task's files lie elsewhere."""
    covered = {Path(small.__file__).parent, Path(inspect.getfile(type(config.corpus))).parent}
    assert Path(programs.__file__).parent not in covered
