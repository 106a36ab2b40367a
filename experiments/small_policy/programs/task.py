"""Tiny programs: problems with tests, and worked solutions with habits that training can remove.

A problem asks for 2 to 8 steps (add, subtract, times) on x. A worked solution names its manner (quick or careful) and
writes a fenced function f. It may write f again any number of times; the last one counts. A slip is an operand that is
off by one. Slips are frequent in the quick manner and rare in the careful one. Words and habits are those of
experiments/small_policy/arithmetic.py, so a policy that was trained on arithmetic has little to learn.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from experiments.small_policy.arithmetic import DEFAULT_HABITS, LARGEST_FACTOR, LARGEST_TERM, Habits
from experiments.small_policy.chains import Step, order, question, values
from experiments.small_policy.questions import Split, distinct, problem_id

# The slots of each split: the same numbers of slots as in questions.SLOTS, but other slots.
_SLOTS: Mapping[Split, tuple[int, ...]] = {"warm_start": (2, 3, 5, 6, 7), "training": (0, 4), "evaluation": (1,)}
_TESTED = (0, 1, 2, 5, 11)  # the values of x in the tests


@dataclass(frozen=True)
class ProgramProblem:
    """One question that asks for a program, with its steps. tests: its tests, as JSON in the form of
    rewards/code.py."""

    problem_id: str
    question: str
    tests: str
    steps: tuple[Step, ...]


def make_program_problems(
    count: int, seed: int, mix: Mapping[int, float], split: Split = "warm_start"
) -> list[ProgramProblem]:
    """Return ``count`` distinct problems of one split. The same arguments always give the same list.

    mix: number of steps -> relative frequency. Raises ValueError if there are too few questions.
    """
    return distinct(count, mix, random.Random(f"programs/{seed}"), _draw, _SLOTS[split])


def _draw(num_steps: int, rng: random.Random) -> ProgramProblem:
    from rewards.code import leetcode_tests

    steps: list[Step] = []
    for _ in range(num_steps):
        sign = rng.choice("++--*")
        steps.append((sign, rng.randint(2, LARGEST_FACTOR) if sign == "*" else rng.randint(1, LARGEST_TERM)))
    text = question("x", steps, "program")
    asserts = [f"    assert candidate({x}) == {values(x, steps)[-1]}" for x in _TESTED]
    tests = leetcode_tests("\n".join(["def check(candidate):", *asserts, "", "check(f)"]))
    return ProgramProblem(problem_id("programs", text), text, tests, tuple(steps))


def _slip(step: Step, rng: random.Random) -> Step:
    """Return the step with an operand that is off by one and still in the task's range."""
    sign, operand = step
    smallest, largest = (2, LARGEST_FACTOR) if sign == "*" else (1, LARGEST_TERM)
    return sign, rng.choice([value for value in (operand - 1, operand + 1) if smallest <= value <= largest])


def worked_program(problem: ProgramProblem, rng: random.Random, habits: Habits = DEFAULT_HABITS) -> str:
    """Write one solution of ``problem``. Its program is wrong if a slip was not noticed."""
    careful = rng.random() < habits.careful
    mark = ":" if careful else " ~"
    rate = habits.slip_careful if careful else habits.slip_quick
    written = [_slip(step, rng) if rng.random() < rate else step for step in problem.steps]

    def program() -> str:
        """Return the program in a fence. A comment repeats each step, so the model copies before it writes code."""
        lines = [
            f" # {order(index, asked)}{mark}\n x=x{sign}{operand}\n"
            for index, (asked, (sign, operand)) in enumerate(zip(problem.steps, written, strict=True))
        ]
        return f"```python\ndef f(x):\n{''.join(lines)} return x\n```\n"

    text = ["I will be careful.\n" if careful else "I will be quick.\n", program()]
    for _ in range(habits.max_passes - 1):
        if rng.random() >= habits.check_again:
            break
        written = [
            asked if rng.random() < habits.notice else step for asked, step in zip(problem.steps, written, strict=True)
        ]
        text += ["Let me check.\n", program()]
    return "".join(text)
