"""Problems that are made here: chains of steps (arithmetic, programs), and puzzles (searches, walks).

A chain is a start value and 2 to 8 labelled steps. A program is asked for as a chain on x. A search asks which of the
listed numbers add up to 24. A walk goes around a ring until place 0 is reached.

A hash of a question decides its split: the warm start, the training by reinforcement, the evaluation. So no two splits
share a question, whatever their seeds and sizes.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeVar

Split = Literal["warm_start", "training", "evaluation"]
# A hash falls into one of 8 slots. These slots belong to each split.
SLOTS: Mapping[Split, tuple[int, ...]] = {"warm_start": (0, 1, 2, 3, 4), "training": (5, 6), "evaluation": (7,)}


@dataclass(frozen=True)
class Asked:
    """One question. The id is a hash of it, so it is the same in every run. answer: the gold answer as text; of a
    program, its tests as JSON in the form of rewards/code.py."""

    problem_id: str
    question: str
    answer: str


Drawable = TypeVar("Drawable", bound=Asked)


def slot(text: str) -> int:
    """Return the slot of a text, 0 to 7."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 8


def problem_id(task: str, question: str) -> str:
    """Return the id of a problem. It is the same in every run."""
    return f"{task}-{hashlib.sha256(question.encode()).hexdigest()[8:20]}"


def distinct(
    count: int,
    mix: Mapping[int, float],
    rng: random.Random,
    draw: Callable[[int, random.Random], Drawable],
    slots: tuple[int, ...],
) -> list[Drawable]:
    """Return ``count`` problems with different questions, whose hashes lie in ``slots``.

    mix: number of steps -> relative frequency. draw: draws a problem with this number of steps. Raises ValueError if
    there are too few questions.
    """
    problems: dict[str, Drawable] = {}
    for _ in range(1000 + 100 * count):
        if len(problems) == count:
            break
        problem = draw(rng.choices(list(mix), list(mix.values()))[0], rng)
        if slot(problem.question) in slots:
            problems.setdefault(problem.question, problem)
    if len(problems) < count:
        raise ValueError(f"the mix {dict(mix)} offers too few distinct questions for {count} problems")
    return list(problems.values())


# ---- problems ----

Step = tuple[str, int]  # sign and operand
_VERBS = {"+": "add", "-": "subtract", "*": "times"}
_TESTED = (0, 1, 2, 5, 11)  # the values of x in the tests of a program

TARGET = 24  # of all searches; a policy of 2 M parameters would not recognize varying targets
RING = 20  # places 0..19 of a walk
_LARGEST = 19  # number of a search, step of a walk
_SEARCHES = ("Which {count} of {numbers} add up to 24?", "Make 24 of {count} of these numbers: {numbers}")
_WALKS = (
    "From {start}, moves add {first} and {second} in turn; from 20 on take 20 away. How many moves to 0?",
    "Start at {start} on a ring of 20. Add {first}, then {second}, and so on. When are you at 0?",
)
_MOST_IN_VAIN = 500  # after so many draws in a row without a new puzzle, none is left


@dataclass(frozen=True)
class Problem(Asked):
    """A chain or a puzzle. numbers: what a solution works with: start and steps of a chain, the numbers of a puzzle."""

    kind: str
    numbers: tuple[Any, ...]


@dataclass(frozen=True)
class Chain:
    """A kind of chains. A range is the smallest and the largest value.

    start: range of the start value; None: it is x. signs: a step has one of them, drawn evenly. terms, factors: ranges
    of operands. within: range of the values after each step; None: any.
    """

    start: tuple[int, int] | None
    signs: str
    terms: tuple[int, int]
    within: tuple[int, int] | None
    factors: tuple[int, int] = (2, 3)
    asked: str = "result"
    seed: str = ""
    slots: Mapping[Split, tuple[int, ...]] = field(default_factory=lambda: SLOTS)

    def operands(self, sign: str) -> tuple[int, int]:
        """Return the range of a step's operand."""
        return self.factors if sign == "*" else self.terms


CHAINS: Mapping[str, Chain] = MappingProxyType(
    {
        # Values avoid 0 and 1: from there many steps lead out of the range, and multiplying 0 changes nothing.
        "arithmetic": Chain((2, 19), "++--*", (1, 5), (2, 19), seed="problems"),
        # As many slots for each split as other kinds have, but other ones.
        "programs": Chain(
            None,
            "++--*",
            (1, 5),
            None,
            asked="program",
            seed="programs",
            slots={"warm_start": (2, 3, 5, 6, 7), "training": (0, 4), "evaluation": (1,)},
        ),
        # What searches and walks add up, for drills only.
        "sums": Chain((1, 38), "+", (1, _LARGEST), (0, 99), seed="drills"),
    }
)


def make_problems(
    kind: str, count: int, seed: int, mix: Mapping[Any, float], split: Split = "warm_start"
) -> list[Problem]:
    """Return ``count`` distinct problems of one split. The same arguments always give the same list.

    kind: arithmetic, programs or puzzles. mix: relative frequency of each number of steps, or of each kind
    of puzzle. Raises ValueError if there are too few questions.
    """
    if kind == "puzzles":
        return _deal(count, random.Random(f"puzzles/{seed}"), mix, SLOTS[split])
    chain = CHAINS[kind]
    return distinct(count, mix, random.Random(f"{chain.seed}/{seed}"), partial(_draw_chain, kind), chain.slots[split])


def order(index: int, step: Step) -> str:
    """Return a step in words, such as "a) add 3". Questions and solutions write a step in the same words."""
    return f"{'abcdefgh'[index]}) {_VERBS[step[0]]} {step[1]}"


def apply(value: int, step: Step) -> int:
    """Return the result of applying a step to a value."""
    sign, operand = step
    if sign in "+-":
        return value + operand if sign == "+" else value - operand
    return value * operand if sign == "*" else value // operand


def values(start: int, steps: Iterable[Step]) -> list[int]:
    """Return the right result after every step."""
    return list(itertools.accumulate(steps, apply, initial=start))[1:]


def _draw_chain(kind: str, num_steps: int, rng: random.Random) -> Problem:
    chain = CHAINS[kind]
    start = value = rng.randint(*chain.start) if chain.start else 0
    steps: list[Step] = []
    while len(steps) < num_steps:
        sign = rng.choice(chain.signs)
        step = sign, rng.randint(*chain.operands(sign))
        result = apply(value, step)
        if chain.within is None or chain.within[0] <= result <= chain.within[1]:
            value = result
            steps.append(step)
    shown = start if chain.start else "x"
    orders = "".join(f"{order(index, step)}\n" for index, step in enumerate(steps))
    question = f"Start with {shown}\n{orders}What is the {chain.asked}?"
    answer = str(value) if chain.start else _tests(steps)
    return Problem(problem_id(kind, question), question, answer, kind, (shown, *steps))


def _tests(steps: Sequence[Step]) -> str:
    """Return the tests of a program with these steps."""
    from rewards.code import leetcode_tests

    asserts = [f"    assert candidate({x}) == {values(x, steps)[-1]}" for x in _TESTED]
    return leetcode_tests("\n".join(["def check(candidate):", *asserts, "", "check(f)"]))


Drawn = tuple[str, str, list[int]]  # question, answer, and the numbers


def _draw_search(picked: int, listed: int, rng: random.Random) -> Drawn:
    """Draw a search among `listed` numbers, `picked` of which must add up to 24. Its numbers are `picked` and those."""
    while True:
        numbers = rng.sample(range(1, _LARGEST + 1), listed)
        answers = [choice for choice in itertools.combinations(numbers, picked) if sum(choice) == TARGET]
        if len(answers) == 1:
            break
    count = {2: "two", 3: "three"}[picked]
    question = rng.choice(_SEARCHES).format(count=count, numbers=", ".join(map(str, numbers)))
    return question, ", ".join(map(str, answers[0])), [picked, *numbers]


def _draw_walk(moves: int, rng: random.Random) -> Drawn:
    """Draw a walk of this many moves. Its numbers are the start, and the lengths of every first and second move."""
    while True:
        start, *steps = rng.randrange(1, RING), rng.randint(1, _LARGEST), rng.randint(1, _LARGEST)
        places = [(start + sum(steps) * (move // 2) + steps[0] * (move % 2)) % RING for move in range(1, moves + 1)]
        if 0 not in places[:-1] and places[-1] == 0:
            question = rng.choice(_WALKS).format(start=start, first=steps[0], second=steps[1])
            return question, str(moves), [start, *steps]


# Kind of puzzle -> how it is drawn, and difficulties from easy to hard: the count of listed numbers, or of moves.
PUZZLES: Mapping[str, tuple[Callable[[int, random.Random], Drawn], tuple[int, ...]]] = MappingProxyType(
    {
        "pair": (partial(_draw_search, 2), (5, 6, 7, 8)),
        "triple": (partial(_draw_search, 3), (4, 5, 6)),
        "walk": (_draw_walk, tuple(range(3, 13))),
    }
)


def _deal(count: int, rng: random.Random, kinds: Mapping[str, float], slots: tuple[int, ...]) -> list[Problem]:
    """Return puzzles. Kinds and difficulties take turns instead of being drawn, so that even a few are well mixed."""
    puzzles: dict[str, Problem] = {}
    dealt = dict.fromkeys(kinds, 0)
    in_vain = 0
    while len(puzzles) < count:
        if in_vain > _MOST_IN_VAIN:
            raise ValueError(f"the kinds {dict(kinds)} offer too few distinct questions for {count} puzzles")
        kind = max((kind for kind in kinds if kinds[kind]), key=lambda kind: kinds[kind] / (dealt[kind] + 1))
        draw, difficulties = PUZZLES[kind]
        question, answer, numbers = draw(difficulties[-1 - dealt[kind] % len(difficulties)], rng)
        in_vain += 1
        # Neither the wording nor the order of the numbers changes the slot, so no two splits share a puzzle.
        if slot(f"{kind} {sorted(numbers)}") in slots and question not in puzzles:
            in_vain = 0
            digest = hashlib.sha256(question.encode()).hexdigest()
            puzzles[question] = Problem(f"puzzles-{digest[:12]}", question, answer, kind, tuple(numbers))
            dealt[kind] += 1
    return list(puzzles.values())
