"""Chains of small arithmetic steps: problems, and worked solutions with habits that training can remove.

A problem is a start value and 2 to 8 labelled steps. Every intermediate value lies in 0..19, so that a model of
3 M parameters learns the steps within a minute. A worked solution names its manner (quick or careful), writes one
line per step, may repeat all lines as a check any number of times, and ends in ``\\boxed{answer}``. An error is a slip:
a result that is off by one. Slips are frequent in the quick manner and rare in the careful one. The repeated lines make
the responses long-tailed and repetitive, like chains of thought.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from experiments.small_policy.chains import ChainProblem, Step, apply, chain_problem, order, values
from experiments.small_policy.questions import SLOTS, Split, distinct

LARGEST_VALUE = 19
LARGEST_TERM = 5
LARGEST_FACTOR = 3

# Number of steps -> relative frequency. Long chains are rarer.
DEFAULT_MIX: Mapping[int, float] = MappingProxyType({2: 0.20, 3: 0.36, 4: 0.20, 5: 0.10, 6: 0.07, 7: 0.04, 8: 0.03})


@dataclass(frozen=True)
class Habits:
    """Probabilities of the decisions in writing a solution.

    A pass writes one line per step. careful: a solution is in the careful manner. slip_careful, slip_quick: a line of
    the first pass has a slip, in each of the two manners. check_again: after a pass, another one follows. notice: a
    later pass notices a given slip. max_passes: the most passes, not a probability; it keeps nearly all solutions
    within the usual limit of 512 tokens.
    """

    careful: float = 0.25
    slip_careful: float = 0.03
    slip_quick: float = 0.2
    check_again: float = 0.52
    notice: float = 0.2
    max_passes: int = 8


DEFAULT_HABITS = Habits()


def _in_range(results: list[int]) -> bool:
    return all(0 <= result <= LARGEST_VALUE for result in results)


def draw_step(value: int, rng: random.Random) -> Step:
    """Draw a step that leads from ``value`` to another value in 0..19."""
    while True:
        symbol = rng.choice("++--*")
        step = (symbol, rng.randint(2, LARGEST_FACTOR) if symbol == "*" else rng.randint(1, LARGEST_TERM))
        if _in_range([apply(value, step)]):
            return step


def equation(before: int, step: Step) -> tuple[str, str]:
    """Return a step's equation in two parts: the text up to and with the equals sign, and the right result."""
    return f"{before}{step[0]}{step[1]}=", str(apply(before, step))


def _line(index: int, before: int, step: Step, result: int, careful: bool) -> str:
    """Return one line of a solution.

    The line begins with the step in the words of the question, so that the model copies before it computes. A sign
    after the step shows the manner again, close to the result, whose slips depend on the manner.
    """
    sign = ": " if careful else " ~ "
    return f"{order(index, step)}{sign}{equation(before, step)[0]}{result}\n"


def _draw_problem(num_steps: int, rng: random.Random) -> ChainProblem:
    """Draw a problem whose intermediate values all lie in 0..19."""
    start = value = rng.randint(2, LARGEST_VALUE)
    steps: list[Step] = []
    while len(steps) < num_steps:
        step = draw_step(value, rng)
        # Chains avoid 0 and 1: from there many steps lead out of the range, and multiplying 0 changes nothing.
        if apply(value, step) >= 2:
            value = apply(value, step)
            steps.append(step)
    return chain_problem("arithmetic", start, steps)


def make_problems(
    count: int, seed: int, mix: Mapping[int, float] = DEFAULT_MIX, split: Split = "warm_start"
) -> list[ChainProblem]:
    """Return ``count`` distinct problems of one split. The same arguments always give the same list.

    Raises ValueError if the mix has too few questions.
    """
    return distinct(count, mix, random.Random(f"problems/{seed}"), _draw_problem, SLOTS[split])


def _slip(value: int, later_steps: Sequence[Step], rng: random.Random) -> int:
    """Return a result that is off by one, or the right one if every slip would lead later results out of 0..19."""
    wrong = [w for w in (value - 1, value + 1) if _in_range([w, *values(w, later_steps)])]
    return rng.choice(wrong) if wrong else value


def _first_pass(
    problem: ChainProblem, careful: bool, habits: Habits, rng: random.Random
) -> tuple[list[int], list[str]]:
    """Write the first pass. Returns its results, of which some are wrong by a slip, and its lines."""
    slip_rate = habits.slip_careful if careful else habits.slip_quick
    results: list[int] = []
    lines: list[str] = []
    before = problem.start
    for index, step in enumerate(problem.steps):
        result = apply(before, step)
        if rng.random() < slip_rate:
            result = _slip(result, problem.steps[index + 1 :], rng)
        lines.append(_line(index, before, step, result, careful))
        results.append(result)
        before = result
    return results, lines


def _check(
    problem: ChainProblem, previous: list[int], careful: bool, habits: Habits, rng: random.Random
) -> tuple[list[int], list[str]]:
    """Write a pass that checks the results of the previous pass. Returns its results and its lines.

    The pass repeats the previous results. If it notices a slip, it writes the right result and continues from there.
    """
    results: list[int] = []
    lines: list[str] = []
    before = previous_before = problem.start
    for index, step in enumerate(problem.steps):
        correct = apply(before, step)
        unchanged = before == previous_before
        result = previous[index] if unchanged and rng.random() >= habits.notice else correct
        lines.append(_line(index, before, step, result, careful))
        if unchanged and result != previous[index]:
            lines.append(f"Wait, {previous[index]} was wrong.\n")
        results.append(result)
        before, previous_before = result, previous[index]
    return results, lines


def worked_solution(problem: ChainProblem, rng: random.Random, habits: Habits = DEFAULT_HABITS) -> str:
    """Write one solution of ``problem``. Its boxed answer is wrong if a slip was not noticed."""
    careful = rng.random() < habits.careful
    text = ["I will be careful.\n" if careful else "I will be quick.\n"]
    results, lines = _first_pass(problem, careful, habits, rng)
    text += lines
    for _ in range(habits.max_passes - 1):
        if rng.random() >= habits.check_again:
            break
        results, lines = _check(problem, results, careful, habits, rng)
        text += ["Let me check.\n", *lines]
    text.append(f"The result is \\boxed{{{results[-1]}}}.")
    return "".join(text)
