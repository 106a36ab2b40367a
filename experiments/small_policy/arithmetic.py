"""Chains of small arithmetic steps: problems, and worked solutions with habits that training can remove.

A problem is a start value and 2 to 8 labelled steps. Every intermediate value lies in 0..19, so that a model of
3 M parameters learns the steps within a minute. A worked solution opens with a manner (quick or careful), writes one
line per step, may repeat all lines as a check any number of times, and ends in ``\\boxed{answer}``. An error is a slip:
a result that is off by one. Slips are frequent in the quick manner and rare in the careful one. The repeated lines make
the responses long-tailed and repetitive, like chains of thought.
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
# The slots, of 8 slots for hashes of questions, that belong to each split. So no two splits share a question, whatever
# their seeds and sizes.
_SLOTS: Mapping[Split, range] = {"warm_start": range(0, 5), "training": range(5, 7), "evaluation": range(7, 8)}

# Number of steps -> relative frequency. Long chains are rarer.
DEFAULT_MIX: Mapping[int, float] = MappingProxyType({2: 0.20, 3: 0.36, 4: 0.20, 5: 0.10, 6: 0.07, 7: 0.04, 8: 0.03})


@dataclass(frozen=True)
class ArithmeticProblem:
    """One question, with the gold answer as text. The id is a hash of the question, so it is the same in every run."""

    problem_id: str
    question: str
    answer: str


@dataclass(frozen=True)
class Habits:
    """Probabilities of the decisions in writing a solution.

    careful: the solution is in the careful manner. slip_careful, slip_quick: a line of the first pass has a slip.
    check_again: another pass follows, decided after every pass. notice: a check notices a slip, decided for each slip.
    max_passes keeps nearly all solutions within the usual limit of 512 tokens.
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
    """Start value and steps of a question."""

    start: int
    steps: list[Step] = field(default_factory=list)

    def values(self) -> list[int]:
        """Return the right result after every step."""
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
    """Return a step's equation in two parts: the text up to and with the equals sign, and the right result."""
    return f"{before}{step[0]}{step[1]}=", str(_apply(before, step))


def _order(index: int, step: Step) -> str:
    """Return a step in the words of the question, which a solution's line repeats."""
    return f"{LABELS[index]}) {_WORDS[step[0]]} {step[1]}"


def _line(index: int, before: int, step: Step, result: int, careful: bool) -> str:
    """Return one line of a solution.

    The line begins with the step in the words of the question, so that the model copies before it computes. The sign
    after it repeats the manner, close to the result that depends on the manner.
    """
    sign = ": " if careful else " ~ "
    return f"{_order(index, step)}{sign}{equation(before, step)[0]}{result}\n"


def _draw_chain(length: int, rng: random.Random) -> _Chain:
    """Draw a chain whose intermediate values all lie in 0..19."""
    chain = _Chain(rng.randint(2, LARGEST_VALUE))
    value = chain.start
    while len(chain.steps) < length:
        step = draw_step(value, rng)
        # Chains avoid 0 and 1: from there many steps lead out of the range, and multiplying 0 changes nothing.
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
) -> list[ArithmeticProblem]:
    """Return ``count`` distinct problems of one split. The same arguments always give the same list.

    Splits never share a question, because a question's hash decides its split. Raises ValueError if the mix has too few
    questions.
    """
    rng = random.Random(f"problems/{seed}")
    lengths, weights = list(mix), list(mix.values())
    problems: dict[str, ArithmeticProblem] = {}
    for _ in range(1000 + 100 * count):
        if len(problems) == count:
            break
        chain = _draw_chain(rng.choices(lengths, weights)[0], rng)
        question = _to_question(chain)
        digest = hashlib.sha256(question.encode()).hexdigest()
        if int(digest[:8], 16) % 8 in _SLOTS[split]:
            problems[question] = ArithmeticProblem(f"arithmetic-{digest[8:20]}", question, str(chain.values()[-1]))
    if len(problems) < count:
        raise ValueError(f"the mix {dict(mix)} offers too few distinct questions for {count} problems")
    return list(problems.values())


def make_training_problems(count: int, seed: int, mix: Mapping[int, float] = DEFAULT_MIX) -> list[ArithmeticProblem]:
    """Return problems for reinforcement learning. The warm start never sees them."""
    return make_problems(count, seed, mix, split="training")


def _slip(value: int, later_steps: list[Step], rng: random.Random) -> int:
    """Return a result that is off by one, or the right one if every slip would lead later results out of 0..19."""
    wrong = [w for w in (value - 1, value + 1) if _in_range([w, *_Chain(w, later_steps).values()])]
    return rng.choice(wrong) if wrong else value


def _first_pass(chain: _Chain, careful: bool, habits: Habits, rng: random.Random) -> tuple[list[int], list[str]]:
    """Return the results of a first pass, with its slips, and its lines."""
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
    chain: _Chain, previous: list[int], careful: bool, habits: Habits, rng: random.Random
) -> tuple[list[int], list[str]]:
    """Return the results and the lines of a pass that checks the previous results.

    The pass repeats the previous results. Where it notices a slip, it writes the right result and continues from that.
    """
    results: list[int] = []
    lines: list[str] = []
    before = previous_before = chain.start
    for index, step in enumerate(chain.steps):
        correct = _apply(before, step)
        unchanged = before == previous_before
        result = previous[index] if unchanged and rng.random() >= habits.notice else correct
        lines.append(_line(index, before, step, result, careful))
        if unchanged and result != previous[index]:
            lines.append(f"Wait, {previous[index]} was wrong.\n")
        results.append(result)
        before, previous_before = result, previous[index]
    return results, lines


def worked_solution(problem: ArithmeticProblem, rng: random.Random, habits: Habits = DEFAULT_HABITS) -> str:
    """Write one solution of ``problem``. Its boxed answer is wrong if a slip was not noticed."""
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
