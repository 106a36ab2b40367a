"""Problems of every kind are deterministic and right, and no two splits share a question."""

import hashlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.policies.problems import TARGET, Split, make_problems

MIXES: dict[str, dict[Any, float]] = {
    "arithmetic": {2: 1, 3: 2, 8: 1},
    "programs": {2: 1, 3: 1, 8: 1},
    "puzzles": {"pair": 3, "triple": 3, "walk": 2},
}
SIZES: dict[Split, int] = {"warm_start": 800, "training": 300, "evaluation": 150}


@pytest.mark.parametrize("kind", MIXES)
def test_problems_are_the_same_again_and_of_one_split(kind: str) -> None:
    mix = MIXES[kind]
    assert make_problems(kind, 50, 3, mix) == make_problems(kind, 50, 3, mix) != make_problems(kind, 50, 4, mix)
    splits = [make_problems(kind, count, 0, mix, split) for split, count in SIZES.items()]
    questions = [{problem.question for problem in split} for split in splits]
    assert [len(of_split) for of_split in questions] == list(SIZES.values())
    assert not any(one & other for one, other in itertools.combinations(questions, 2))


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        ("arithmetic", "a4446ad12cfa"),
        ("programs", "0862a5ee02fb"),
        ("puzzles", "9eb8a32643a1"),
    ],
)
def test_problems_do_not_change(kind: str, digest: str) -> None:
    problems = make_problems(kind, 200, 0, MIXES[kind], "training")
    rows = json.dumps([(problem.problem_id, problem.question, problem.answer) for problem in problems])
    assert hashlib.sha256(rows.encode()).hexdigest()[:12] == digest


@pytest.mark.parametrize(("kind", "count", "steps"), [("arithmetic", 100, 1), ("programs", 50, 2)])
def test_too_many_chains_are_an_error(kind: str, count: int, steps: int) -> None:
    with pytest.raises(ValueError, match="too few distinct questions"):
        make_problems(kind, count, 0, {steps: 1}, "evaluation")


def test_values_of_chains_stay_in_range() -> None:
    for problem in make_problems("arithmetic", 200, 0, MIXES["arithmetic"]):
        value, *steps = problem.numbers
        for sign, number in steps:
            value = {"+": value + number, "-": value - number, "*": value * number}[sign]
            assert 2 <= value <= 19
        assert problem.answer == str(value)


def test_puzzles_of_splits_share_no_numbers_in_another_order() -> None:
    splits = [make_problems("puzzles", count, 0, MIXES["puzzles"], split) for split, count in SIZES.items()]
    of_split = [{(puzzle.kind, *sorted(puzzle.numbers)) for puzzle in split} for split in splits]
    assert not any(one & other for one, other in itertools.combinations(of_split, 2))


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["pair", "triple"]))
def test_exactly_one_choice_makes_24(seed: int, kind: str) -> None:
    (puzzle,) = make_problems("puzzles", 1, seed, {kind: 1})
    picked, *numbers = puzzle.numbers
    right = [choice for choice in itertools.combinations(numbers, picked) if sum(choice) == TARGET]
    assert [set(choice) for choice in right] == [set(map(int, puzzle.answer.split(", ")))]
