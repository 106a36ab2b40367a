"""Word problems have the answer that they tell of; solutions are right, and vary in words and lengths."""

from __future__ import annotations

import itertools
import random
import re

from experiments.policies.problems import Split, apply
from experiments.policies.words import LARGEST_NUMBER, make_word_problems, worked_solution
from rewards.maths import accuracy_reward

EQUATION = re.compile(r"(\d+)([+*/-])(\d+)=(\d+)")
ANY_LENGTH = dict.fromkeys(range(1, 11), 1.0)


def test_numbers_stay_small_and_lead_to_the_answer() -> None:
    for problem in make_word_problems(200, 0, ANY_LENGTH):
        values = [problem.start]
        for sign, number, told in problem.events:
            assert told in problem.question
            assert values[-1] == apply(values[-1], (sign, number)) * 2 or sign != "/"
            values.append(apply(values[-1], (sign, number)))
        assert all(1 <= value <= LARGEST_NUMBER for value in values)
        assert problem.answer == str(values[-1])
    lengths = {len(problem.events) for problem in make_word_problems(200, 0, ANY_LENGTH)}
    assert lengths == set(ANY_LENGTH)


def test_solutions_are_right() -> None:
    rng = random.Random(0)
    for problem in make_word_problems(60, 1, ANY_LENGTH):
        solution = worked_solution(problem, rng)
        equations = EQUATION.findall(solution)
        assert len(equations) % len(problem.events) == 0, "whole passes"
        assert all(apply(int(a), (sign, int(b))) == int(result) for a, sign, b, result in equations)
        assert accuracy_reward([solution], [problem.answer]) == [1.0]
        assert not re.search(r"[\[\]|]|\{\w*[a-z]", solution), "a choice or a word was left in it"


def test_splits_share_no_question() -> None:
    splits: tuple[Split, ...] = ("warm_start", "training", "evaluation")
    questions = [{problem.question for problem in make_word_problems(200, 0, split=split)} for split in splits]
    assert not any(one & other for one, other in itertools.combinations(questions, 2))
