"""Problems of every generator are deterministic, and no two splits share a question."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from experiments.small_policy.arithmetic import DEFAULT_MIX, make_problems
from experiments.small_policy.calculator.problems import make_sums
from experiments.small_policy.programs.task import make_program_problems
from experiments.small_policy.puzzles.problems import DEFAULT_KINDS, make_puzzles

MAKERS: dict[str, tuple[Callable[..., list[Any]], dict[Any, float]]] = {
    "arithmetic": (make_problems, dict(DEFAULT_MIX)),
    "calculator": (make_sums, {2: 1.0, 3: 1.0, 4: 1.0}),
    "programs": (make_program_problems, {2: 1.0, 3: 1.0, 8: 1.0}),
    "puzzles": (make_puzzles, dict(DEFAULT_KINDS)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_generated_problems(name: str) -> None:
    make, mix = MAKERS[name]
    assert make(50, 3, mix) == make(50, 3, mix) != make(50, 4, mix)
    sizes = {"warm_start": 800, "training": 300, "evaluation": 150}
    splits = [make(count, 0, mix, split) for split, count in sizes.items()]
    questions = [{problem.question for problem in split} for split in splits]
    assert [len(of_split) for of_split in questions] == list(sizes.values())
    assert not any(one & other for one, other in combinations(questions, 2))
