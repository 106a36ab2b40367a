"""Tiny programs: problems with tests, and worked solutions with habits that training can remove.

A problem asks for 2 to 8 steps (add, subtract, times) on x. A worked solution opens with a manner and writes a fenced
function f. It may write f again any number of times; the last one counts. A slip is an operand that is off by one.
Slips are frequent in the quick manner and rare in the careful one. Words and habits are those of
experiments/small_policy/arithmetic.py, so a policy that was trained on arithmetic has little to learn.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from experiments.small_policy.arithmetic import DEFAULT_HABITS, LABELS, LARGEST_FACTOR, LARGEST_TERM, Habits

Split = Literal["warm_start", "training", "evaluation"]
# The slots, of 8 slots for hashes of questions, that belong to each split.
_SLOTS: Mapping[Split, tuple[int, ...]] = {"warm_start": (2, 3, 5, 6, 7), "training": (0, 4), "evaluation": (1,)}
_SIGNS = {"add": "+", "subtract": "-", "times": "*"}
_ORDER = re.compile(r"[a-h]\) (add|subtract|times) (\d+)")
_TESTED = (0, 1, 2, 5, 11)  # the values of x in the tests


@dataclass(frozen=True)
class ProgramProblem:
    """One question, with its tests in the form of rewards/code.py. The id is a hash of the question."""

    problem_id: str
    question: str
    tests: str


def _result(x: int, steps: list[tuple[str, int]]) -> int:
    for verb, operand in steps:
        x = x + operand if verb == "add" else x - operand if verb == "subtract" else x * operand
    return x


def _check(steps: list[tuple[str, int]]) -> str:
    lines = [f"    assert candidate({x}) == {_result(x, steps)}" for x in _TESTED]
    return "\n".join(["def check(candidate):", *lines, "", "check(f)"])


def make_program_problems(
    count: int, seed: int, mix: Mapping[int, float], split: Split = "warm_start"
) -> list[ProgramProblem]:
    """Return ``count`` distinct problems of one split. The same arguments always give the same list.

    mix: number of steps -> relative frequency. Splits never share a question. Raises ValueError if there are too few.
    """
    from rewards.code import leetcode_tests

    rng = random.Random(f"programs/{seed}")
    problems: dict[str, ProgramProblem] = {}
    for _ in range(1000 + 100 * count):
        if len(problems) == count:
            break
        steps: list[tuple[str, int]] = []
        for _ in range(rng.choices(list(mix), list(mix.values()))[0]):
            verb = rng.choice(("add", "add", "subtract", "subtract", "times"))
            steps.append((verb, rng.randint(2, LARGEST_FACTOR) if verb == "times" else rng.randint(1, LARGEST_TERM)))
        orders = "\n".join(f"{label}) {verb} {operand}" for label, (verb, operand) in zip(LABELS, steps, strict=False))
        question = f"Start with x\n{orders}\nWhat is the program?"
        digest = hashlib.sha256(question.encode()).hexdigest()
        if question not in problems and int(digest[:8], 16) % 8 in _SLOTS[split]:
            problems[question] = ProgramProblem(f"programs-{digest[8:20]}", question, leetcode_tests(_check(steps)))
    if len(problems) < count:
        raise ValueError(f"the mix {dict(mix)} offers too few distinct questions for {count} problems")
    return list(problems.values())


def _slip(verb: str, operand: int, rng: random.Random) -> int:
    """Return an operand that is off by one and still in the task's range."""
    smallest, largest = (2, LARGEST_FACTOR) if verb == "times" else (1, LARGEST_TERM)
    return rng.choice([value for value in (operand - 1, operand + 1) if smallest <= value <= largest])


def worked_program(question: str, rng: random.Random, habits: Habits = DEFAULT_HABITS) -> str:
    """Write one solution of `question`. Its program is wrong if a slip was not noticed."""
    steps = [(verb, int(operand)) for verb, operand in _ORDER.findall(question)]
    careful = rng.random() < habits.careful
    sign = ":" if careful else " ~"
    rate = habits.slip_careful if careful else habits.slip_quick
    written = [_slip(verb, operand, rng) if rng.random() < rate else operand for verb, operand in steps]

    def program() -> str:
        """The program in a fence. A comment repeats each step before its line, so the model copies before it writes."""
        lines = [
            f" # {label}) {verb} {ordered}{sign}\n x=x{_SIGNS[verb]}{operand}\n"
            for label, (verb, ordered), operand in zip(LABELS, steps, written, strict=False)
        ]
        return f"```python\ndef f(x):\n{''.join(lines)} return x\n```\n"

    text = ["I will be careful.\n" if careful else "I will be quick.\n", program()]
    for _ in range(habits.max_passes - 1):
        if rng.random() >= habits.check_again:
            break
        written = [
            ordered if rng.random() < habits.notice else operand
            for (_, ordered), operand in zip(steps, written, strict=True)
        ]
        text += ["Let me check.\n", program()]
    return "".join(text)
