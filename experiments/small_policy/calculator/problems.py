"""Sums of several steps: problems, and conversations that work them out, with the calculator or without.

A conversation is written in one of two manners, which its opening names. A careful conversation calls the calculator
for most steps. A quick one writes most results at once, but a policy of 2 M parameters cannot add such numbers. So
reinforcement learning can raise the reward by calling the tool.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.small_policy.calculator.chat import call_message, result_message
from experiments.small_policy.calculator.tool import calculator
from experiments.small_policy.chains import ChainProblem, Step, apply, chain_problem, order
from experiments.small_policy.questions import SLOTS, Split, distinct

LARGEST = 99  # the largest number, also among the results
SMALLEST_STEP = 3


@dataclass(frozen=True)
class Habits:
    """Probabilities of the decisions in a conversation.

    careful: a conversation is in the careful manner. call_careful, call_quick: a step is worked out by a call of the
    calculator, in each of the two manners. check: a second call works out the same step. remark: a remark follows a
    result. slip: a result that is written without a call is wrong.
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


def make_sums(count: int, seed: int, mix: Mapping[int, float], split: Split = "warm_start") -> list[ChainProblem]:
    """Return ``count`` distinct problems of one split. The same arguments always give the same list.

    mix: number of steps -> relative frequency. Raises ValueError if there are too few questions.
    """
    return distinct(count, mix, random.Random(f"sums/{seed}"), _draw, SLOTS[split])


def _draw(num_steps: int, rng: random.Random) -> ChainProblem:
    start = value = rng.randint(SMALLEST_STEP, LARGEST)
    steps: list[Step] = []
    while len(steps) < num_steps:
        step = rng.choice("+-"), rng.randint(SMALLEST_STEP, LARGEST)
        if 0 <= apply(value, step) <= LARGEST:
            value = apply(value, step)
            steps.append(step)
    return chain_problem("calculator", start, steps)


def worked_lines(problem: ChainProblem) -> list[tuple[str, str]]:
    """Return the steps of a problem as lines of two parts: one that can be copied from earlier text, and the result.

    The last line is the answer. All of it can be copied.
    """
    value, lines = problem.start, []
    for index, step in enumerate(problem.steps):
        copied = f"{order(index, step)}: {value}{step[0]}{step[1]}"
        value = apply(value, step)
        lines.append((copied, f"={value}\n"))
    return [*lines, (_answer(value), "")]


def _answer(value: int) -> str:
    return f"The answer is \\boxed{{{value}}}."


def worked_conversation(
    problem: ChainProblem, rng: random.Random, habits: Habits = DEFAULT_HABITS
) -> list[dict[str, Any]]:
    """Return one conversation about ``problem``: the question, responses that call the calculator, its results, the
    answer."""
    careful = rng.random() < habits.careful
    messages: list[dict[str, Any]] = [{"role": "user", "content": problem.question}]
    text, value = rng.choice(_OPENINGS[careful]), problem.start
    for index, step in enumerate(problem.steps):
        expression = f"{value}{step[0]}{step[1]}"
        text += f"{order(index, step)}: "
        value = apply(value, step)
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
