"""Sums of several steps: problems, and conversations that work them out, with the calculator or without.

A conversation is in one of two manners, which its opening names. The careful manner calls the calculator for most
steps. The quick manner mostly writes a result at once, and a policy of 2 M parameters cannot add such numbers. So
reinforcement learning can raise the reward by calling the tool.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from experiments.small_policy.calculator.chat import call_message, result_message
from experiments.small_policy.calculator.tool import calculator

Split = Literal["warm_start", "training", "evaluation"]
# The slots, of 8 slots for hashes of questions, that belong to each split.
_SLOTS: Mapping[Split, range] = {"warm_start": range(0, 5), "training": range(5, 7), "evaluation": range(7, 8)}
LARGEST = 99  # of all numbers, results included
SMALLEST_STEP = 3
LABELS = "abcdefgh"
_VERBS = {"+": "add", "-": "subtract"}


@dataclass(frozen=True)
class SumProblem:
    """One question, with the gold answer as text. The id is a hash of the question, so it is the same in every run."""

    problem_id: str
    question: str
    answer: str
    start: int
    steps: tuple[tuple[str, int], ...]  # sign and number


@dataclass(frozen=True)
class Habits:
    """Probabilities of the decisions in a conversation.

    careful: it is in the careful manner. call_careful, call_quick: a step is worked out by a call. check: another call
    works out the same step again. remark: a remark follows a result. slip: what is written without a call is wrong.
    """

    careful: float = 0.5
    call_careful: float = 0.92
    call_quick: float = 0.35
    check: float = 0.1
    remark: float = 0.15
    slip: float = 0.3


DEFAULT_HABITS = Habits()
_OPENINGS = {
    True: ("I will use the calculator.\n", "Let me be careful.\n", "Step by step, with the calculator.\n"),
    False: ("I will be quick.\n", "This looks easy.\n", "I can do this in my head.\n"),
}
_REMARKS = ("Good.\n", "I go on with that.\n", "So far so good.\n", "Now the next one.\n")


def make_sums(count: int, seed: int, mix: Mapping[int, float], split: Split = "warm_start") -> list[SumProblem]:
    """Return ``count`` distinct problems of one split. The same arguments always give the same list.

    mix: number of steps -> relative frequency. Splits never share a question. Raises ValueError if there are too few.
    """
    rng = random.Random(f"sums/{seed}")
    problems: dict[str, SumProblem] = {}
    for _ in range(1000 + 100 * count):
        if len(problems) == count:
            break
        problem = _draw(rng.choices(list(mix), list(mix.values()))[0], rng)
        if int(hashlib.sha256(problem.question.encode()).hexdigest()[:8], 16) % 8 in _SLOTS[split]:
            problems.setdefault(problem.question, problem)
    if len(problems) < count:
        raise ValueError(f"the mix {dict(mix)} offers too few distinct questions for {count} problems")
    return list(problems.values())


def _draw(num_steps: int, rng: random.Random) -> SumProblem:
    start = value = rng.randint(SMALLEST_STEP, LARGEST)
    steps: list[tuple[str, int]] = []
    while len(steps) < num_steps:
        sign, number = rng.choice("+-"), rng.randint(SMALLEST_STEP, LARGEST)
        after = _apply(value, sign, number)
        if 0 <= after <= LARGEST:
            value = after
            steps.append((sign, number))
    orders = "".join(f"{_order(index, step)}\n" for index, step in enumerate(steps))
    question = f"Start with {start}\n{orders}What is the result?"
    digest = hashlib.sha256(question.encode()).hexdigest()
    return SumProblem(f"calculator-{digest[8:20]}", question, str(value), start, tuple(steps))


def _order(index: int, step: tuple[str, int]) -> str:
    """A step in the words of the question, which the conversation repeats."""
    return f"{LABELS[index]}) {_VERBS[step[0]]} {step[1]}"


def worked_lines(problem: SumProblem) -> list[tuple[str, str]]:
    """The steps of a problem as lines of two parts: what can be copied from the lines before, and the result.

    The last line is the answer, all of which can be copied.
    """
    value, lines = problem.start, []
    for index, (sign, number) in enumerate(problem.steps):
        expression = f"{value}{sign}{number}"
        value = _apply(value, sign, number)
        lines.append((f"{_order(index, (sign, number))}: {expression}", f"={value}\n"))
    return [*lines, (_answer(value), "")]


def _apply(value: int, sign: str, number: int) -> int:
    return value + number if sign == "+" else value - number


def _answer(value: int) -> str:
    return f"The answer is \\boxed{{{value}}}."


def worked_conversation(
    problem: SumProblem, rng: random.Random, habits: Habits = DEFAULT_HABITS
) -> list[dict[str, Any]]:
    """Write one conversation about ``problem``: question, responses and results of calls, answer."""
    careful = rng.random() < habits.careful
    messages: list[dict[str, Any]] = [{"role": "user", "content": problem.question}]
    text, value = rng.choice(_OPENINGS[careful]), problem.start
    for index, (sign, number) in enumerate(problem.steps):
        expression = f"{value}{sign}{number}"
        text += f"{_order(index, (sign, number))}: "
        value = _apply(value, sign, number)
        if rng.random() < (habits.call_careful if careful else habits.call_quick):
            messages += [call_message(text, expression), result_message(calculator(expression))]
            if rng.random() < habits.check:
                messages += [call_message("Let me check: ", expression), result_message(calculator(expression))]
            text = ""
        else:
            if rng.random() < habits.slip:
                value = rng.randint(0, LARGEST)
            text += f"{expression}={value}\n"
        if rng.random() < habits.remark:
            text += rng.choice(_REMARKS)
    messages.append({"role": "assistant", "content": text + _answer(value)})
    return messages
