"""Chains of small arithmetic steps: problems, and worked solutions with the habits that training can unlearn.

A problem is a start value and 2 to 8 labelled steps; every intermediate value lies in 0..19, small enough for a
3 M-parameter model to learn within a minute. A worked solution opens with a manner (quick or careful), writes one line
per step, may go through the lines again any number of times, and ends in ``\\boxed{answer}``. Errors are slips (a
result one off), frequent in the quick manner and rare in the careful one. Passes over the same lines make the responses
long-tailed and repetitive, as chains of thought are.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Split = Literal["warm_start", "training", "evaluation"]
Step = tuple[str, int]

LARGEST_VALUE = 19
LARGEST_TERM = 5
LARGEST_FACTOR = 3
LABELS = "abcdefgh"
_VERBS = {"add": "+", "subtract": "-", "times": "*"}
_WORDS = {symbol: verb for verb, symbol in _VERBS.items()}
_QUESTION_STEP = re.compile(r"[a-h]\) (add|subtract|times) (\d+)")
_QUESTION_START = re.compile(r"Start with (\d+)")
# Which of 8 hash slots belong to which set: the sets are disjoint by question whatever their seeds and sizes.
_SLOTS: Mapping[Split, range] = {"warm_start": range(0, 5), "training": range(5, 7), "evaluation": range(7, 8)}

# Number of steps -> relative frequency: long chains are rarer.
DEFAULT_MIX: Mapping[int, float] = MappingProxyType({2: 0.20, 3: 0.36, 4: 0.20, 5: 0.10, 6: 0.07, 7: 0.04, 8: 0.03})


@dataclass(frozen=True)
class Problem:
    """One question, with the gold answer as text. The id is a hash of the question, so it is the same in every run."""

    problem_id: str
    question: str
    answer: str


@dataclass(frozen=True)
class Habits:
    """Probabilities of the decisions taken while writing a solution.

    ``slip_*`` are per step line of the first pass; ``check_again`` is asked after every pass; ``notice`` is per slip
    and check. ``max_passes`` keeps nearly all solutions inside the usual limit of 512 tokens.
    """

    careful: float = 0.25
    slip_careful: float = 0.03
    slip_quick: float = 0.2
    check_again: float = 0.52
    notice: float = 0.2
    max_passes: int = 8


DEFAULT_HABITS = Habits()


@dataclass
class _Chain:
    """Start value and steps of a question, with the arithmetic on them."""

    start: int
    steps: list[Step] = field(default_factory=list)

    def values(self) -> list[int]:
        """Return the result after every step."""
        results: list[int] = []
        for step in self.steps:
            results.append(_apply(results[-1] if results else self.start, step))
        return results


def _apply(value: int, step: Step) -> int:
    symbol, operand = step
    if symbol == "+":
        return value + operand
    return value - operand if symbol == "-" else value * operand


def _in_range(values: list[int]) -> bool:
    return all(0 <= value <= LARGEST_VALUE for value in values)


def draw_step(value: int, rng: random.Random) -> Step:
    """Draw a step that leads from ``value`` to another value in 0..19."""
    while True:
        symbol = rng.choice("++--*")
        step = (symbol, rng.randint(2, LARGEST_FACTOR) if symbol == "*" else rng.randint(1, LARGEST_TERM))
        if _in_range([_apply(value, step)]):
            return step


def equation(before: int, step: Step) -> tuple[str, str]:
    """Return a step's equation in two parts: up to the equals sign, and the right result."""
    return f"{before}{step[0]}{step[1]}=", str(_apply(before, step))


def _order(index: int, step: Step) -> str:
    """Return a step as the question states it and as a solution's line repeats it."""
    return f"{LABELS[index]}) {_WORDS[step[0]]} {step[1]}"


def _line(index: int, before: int, step: Step, result: int, careful: bool) -> str:
    """Return one line of a solution.

    The order comes first, so the model copies before it computes. The sign between them repeats the manner
    close to the result that depends on it.
    """
    sign = ": " if careful else " ~ "
    return f"{_order(index, step)}{sign}{equation(before, step)[0]}{result}\n"


def _draw_chain(length: int, rng: random.Random) -> _Chain:
    """Draw a chain whose intermediate values all stay in 0..19."""
    chain = _Chain(rng.randint(2, LARGEST_VALUE))
    value = chain.start
    while len(chain.steps) < length:
        step = draw_step(value, rng)
        # Chains keep clear of 0: from there most steps lead out of range, and times says nothing.
        if _apply(value, step) >= 2:
            value = _apply(value, step)
            chain.steps.append(step)
    return chain


def _to_question(chain: _Chain) -> str:
    orders = "\n".join(_order(index, step) for index, step in enumerate(chain.steps))
    return f"Start with {chain.start}\n{orders}\nWhat is the result?"


def _parse(question: str) -> _Chain:
    start = _QUESTION_START.match(question)
    if start is None:
        raise ValueError(f"not a question of this generator: {question!r}")
    steps = [(_VERBS[verb], int(operand)) for verb, operand in _QUESTION_STEP.findall(question)]
    return _Chain(int(start.group(1)), steps)


def make_problems(
    count: int, seed: int, mix: Mapping[int, float] = DEFAULT_MIX, split: Split = "warm_start"
) -> list[Problem]:
    """Return ``count`` distinct problems of one split; the same arguments always give the same list.

    Splits never share a question: a question's hash decides the split it belongs to.
    """
    rng = random.Random(f"problems/{seed}")
    lengths, weights = list(mix), list(mix.values())
    problems: dict[str, Problem] = {}
    for _ in range(1000 + 100 * count):
        if len(problems) == count:
            break
        chain = _draw_chain(rng.choices(lengths, weights)[0], rng)
        question = _to_question(chain)
        digest = hashlib.sha256(question.encode()).hexdigest()
        if int(digest[:8], 16) % 8 in _SLOTS[split]:
            problems[question] = Problem(f"arithmetic-{digest[8:20]}", question, str(chain.values()[-1]))
    if len(problems) < count:
        raise ValueError(f"the mix {dict(mix)} offers too few distinct questions for {count} problems")
    return list(problems.values())


def make_training_problems(count: int, seed: int, mix: Mapping[int, float] = DEFAULT_MIX) -> list[Problem]:
    """Return the problems reinforcement learning trains on: never seen by the warm start."""
    return make_problems(count, seed, mix, split="training")


def _slip(value: int, later_steps: list[Step], rng: random.Random) -> int:
    """Return a result one off, or the right one where no such slip keeps the rest of the chain in 0..19."""
    wrong = [w for w in (value - 1, value + 1) if _in_range([w, *_Chain(w, later_steps).values()])]
    return rng.choice(wrong) if wrong else value


def _first_pass(chain: _Chain, careful: bool, habits: Habits, rng: random.Random) -> tuple[list[int], list[str]]:
    """Return the results found, slips included, and the lines."""
    slip_rate = habits.slip_careful if careful else habits.slip_quick
    results: list[int] = []
    lines: list[str] = []
    before = chain.start
    for index, step in enumerate(chain.steps):
        result = _apply(before, step)
        if rng.random() < slip_rate:
            result = _slip(result, chain.steps[index + 1 :], rng)
        lines.append(_line(index, before, step, result, careful))
        results.append(result)
        before = result
    return results, lines


def _check(
    chain: _Chain, stands: list[int], careful: bool, habits: Habits, rng: random.Random
) -> tuple[list[int], list[str]]:
    """Go through a pass again: repeat what stands there, but right a slip if it is noticed and go on from that."""
    results: list[int] = []
    lines: list[str] = []
    before = stood_before = chain.start
    for index, step in enumerate(chain.steps):
        right = _apply(before, step)
        untouched = before == stood_before
        result = stands[index] if untouched and rng.random() >= habits.notice else right
        lines.append(_line(index, before, step, result, careful))
        if untouched and result != stands[index]:
            lines.append(f"Wait, {stands[index]} was wrong.\n")
        results.append(result)
        before, stood_before = result, stands[index]
    return results, lines


def worked_solution(problem: Problem, rng: random.Random, habits: Habits = DEFAULT_HABITS) -> str:
    """Write one solution of ``problem``; its boxed answer is wrong where a slip stayed unnoticed."""
    chain = _parse(problem.question)
    careful = rng.random() < habits.careful
    text = ["I will be careful.\n" if careful else "I will be quick.\n"]
    results, lines = _first_pass(chain, careful, habits, rng)
    text += lines
    for _ in range(habits.max_passes - 1):
        if rng.random() >= habits.check_again:
            break
        results, lines = _check(chain, results, careful, habits, rng)
        text += ["Let me check.\n", *lines]
    text.append(f"The result is \\boxed{{{results[-1]}}}.")
    return "".join(text)
