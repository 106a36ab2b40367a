"""Puzzles have one answer; solutions are what the habits say."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.small_policy.puzzles import search
from experiments.small_policy.puzzles.habits import DEFAULT_HABITS, Manner
from experiments.small_policy.puzzles.problems import DEFAULT_KINDS, DIFFICULTIES, make_puzzles, worked_solution
from rewards.maths import accuracy_reward

EQUATION = re.compile(r"(\d+)\+(\d+)=(\d+)")
SLIPPING = Manner(slip=0.6, give_up=0.0, check=0.0, detour=0.0, lucky=0.2)


def test_splits_share_no_numbers_in_another_order() -> None:
    sizes = {"warm_start": 2000, "training": 300, "evaluation": 150}
    splits = [make_puzzles(count, 0, DEFAULT_KINDS, split) for split, count in sizes.items()]  # type: ignore[arg-type]
    of_split = [{(puzzle.kind, *sorted(puzzle.values)) for puzzle in split} for split in splits]
    assert not any(one & other for one, other in itertools.combinations(of_split, 2))


def test_kinds_and_difficulties_are_dealt_in_turn() -> None:
    puzzles = make_puzzles(16, 0, {"pair": 3, "triple": 3, "walk": 2}, split="training")
    counts = {kind: sum(puzzle.kind == kind for puzzle in puzzles) for kind in DIFFICULTIES}
    assert counts == {"pair": 6, "triple": 6, "walk": 4}
    listed = [len(puzzle.values) - 1 for puzzle in puzzles if puzzle.kind == "pair"]
    assert sorted(set(listed)) == list(DIFFICULTIES["pair"])


def test_too_many_puzzles_are_an_error() -> None:
    with pytest.raises(ValueError, match="too few distinct questions"):
        make_puzzles(20_000, 0, {"walk": 1}, split="evaluation")


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["pair", "triple"]))
def test_exactly_one_choice_makes_24(seed: int, kind: str) -> None:
    (puzzle,) = make_puzzles(1, seed, {kind: 1})
    picked, *numbers = puzzle.values
    right = [choice for choice in itertools.combinations(numbers, picked) if sum(choice) == search.TARGET]
    assert [set(choice) for choice in right] == [set(map(int, puzzle.answer.split(", ")))]


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(list(DIFFICULTIES)))
def test_plain_solutions_are_right(seed: int, kind: str) -> None:
    (puzzle,) = make_puzzles(1, seed, {kind: 1})
    solution = worked_solution(puzzle, random.Random(seed), plain=True)
    assert all(int(first) + int(second) == int(total) for first, second, total in EQUATION.findall(solution))
    assert accuracy_reward([solution], [puzzle.answer]) == [1.0]


def test_slips_make_wrong_answers_and_checks_notice_them() -> None:
    puzzles = make_puzzles(60, 1, {"pair": 1})
    answers = [puzzle.answer for puzzle in puzzles]

    def right(manner: Manner) -> float:
        habits = replace(DEFAULT_HABITS, careful_share=0.0, quick=manner)
        texts = [worked_solution(puzzle, random.Random(index), habits) for index, puzzle in enumerate(puzzles)]
        return sum(accuracy_reward(texts, answers)) / len(puzzles)

    assert right(SLIPPING) < 0.9
    assert right(replace(SLIPPING, check=1.0)) == 1.0


def test_the_careful_manner_is_right_more_often_and_longer() -> None:
    puzzles = make_puzzles(80, 2, DEFAULT_KINDS)
    answers = [puzzle.answer for puzzle in puzzles]

    def of_manner(share: float) -> tuple[float, int]:
        habits = replace(DEFAULT_HABITS, careful_share=share)
        texts = [worked_solution(puzzle, random.Random(index), habits) for index, puzzle in enumerate(puzzles)]
        return sum(accuracy_reward(texts, answers)), sum(len(text) for text in texts)

    careful, quick = of_manner(1.0), of_manner(0.0)
    assert careful[0] > quick[0]
    assert careful[1] > quick[1]
