"""Worked solutions, as data: what a writer of each kind does how often, and in which words.

A solution is written in a careful or a quick manner, which its opening names and the other lines repeat. A careful one
has few slips, checks what it finds and searches on until it is right; a quick one has many slips, and soon guesses. So
reinforcement learning can raise the reward. Passes that repeat, and attempts at random, make responses long-tailed and
repetitive, like chains of thought.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from experiments.policies.problems import CHAINS, RING, TARGET, Problem, Step, apply, order, values

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_MOST_ATTEMPTS = 60  # of a search; keeps nearly all solutions within 1,000 tokens
_MOST_MOVES = 25  # of a walk


def say(template: str, rng: random.Random, words: Mapping[str, object]) -> str:
    """Draw one text for each [a|b|c] of the template, and fill in the words."""
    return _CHOICE.sub(lambda found: rng.choice(found[1].split("|")), template).format(**words)


@dataclass(frozen=True)
class Manner:
    """How a solution is written.

    share: relative frequency among the manners of its kind. chances: probability of each decision; none: 0. words:
    template of each line; none: nothing is written.
    """

    share: float
    chances: Mapping[str, float]
    words: Mapping[str, str]


class Writer:
    """Writes one solution. parts: what it has written."""

    def __init__(self, manner: Manner, rng: random.Random) -> None:
        """Begin a solution in this manner."""
        self.manner, self.rng = manner, rng
        self.parts: list[str] = []

    def happens(self, decision: str) -> bool:
        """Draw one decision."""
        return self.rng.random() < self.manner.chances.get(decision, 0.0)

    def say(self, line: str, **words: object) -> None:
        """Write a line in the words of the manner."""
        self.parts.append(say(self.manner.words.get(line, ""), self.rng, words))

    def slipped(self, right: int, allowed: Callable[[int], bool]) -> int:
        """Return the right result or, if a slip happens, one that is off by one and allowed."""
        wrong = [result for result in (right - 1, right + 1) if allowed(result)]
        return self.rng.choice(wrong) if self.happens("slip") and wrong else right


def solution(problem: Problem, rng: random.Random, manners: Sequence[Manner]) -> str:
    """Write one solution of ``problem``. Its answer is wrong if a slip was not noticed, or guessed."""
    (manner,) = rng.choices(manners, [manner.share for manner in manners])
    writer = Writer(manner, rng)
    writer.say("open")
    _WORK.get(problem.kind, _work_chain)(problem.numbers, writer, problem.kind)
    return "".join(writer.parts)


def _work_chain(numbers: Sequence[Any], writer: Writer, kind: str) -> None:
    """Work out a chain; perhaps go through it again, and notice slips."""
    results = _pass(numbers, writer, kind, None)
    while writer.happens("again"):
        writer.say("again")
        results = _pass(numbers, writer, kind, results)
    writer.say("end", result=results[-1])


def _pass(numbers: Sequence[Any], writer: Writer, kind: str, earlier: list[int] | None) -> list[int]:
    """Write all steps of a chain. Returns what was written of each: its result or, in a program, its operand.

    earlier: the same of the pass before. It is repeated, as far as no slip is noticed.
    """
    before, *steps = numbers
    then = before  # the value before this step in the earlier pass
    written: list[int] = []
    computes = kind != "programs"
    writer.say("begin")
    for index, step in enumerate(steps):
        result = right = apply(before, step) if computes else step[1]
        repeats = earlier is not None and before == then
        writer.say("line", order=order(index, step))
        writer.rng.random()  # for nothing, as when the policy that ships learned from these texts
        if earlier is None:
            result = writer.slipped(right, _allowed(kind, step, steps[index + 1 :]))
        elif repeats and not writer.happens("notice"):
            result = earlier[index]
        writer.say("expression", expression=f"{before}{step[0]}{step[1]}", sign=step[0])
        writer.say("result", result=result)
        if earlier is not None and repeats and result != earlier[index]:
            writer.say("wrong", result=earlier[index])
        writer.rng.random()
        written.append(result)
        if computes:
            before, then = result, earlier[index] if earlier is not None else result
    writer.say("finish")
    return written


def _allowed(kind: str, step: Step, later: Sequence[Step]) -> Callable[[int], bool]:
    """Return which results a slip may have: those that keep all values, or a program's operand, in range."""
    chain = CHAINS[kind]
    if chain.within is None:
        low, high = chain.operands(step[0])
        return lambda result: low <= result <= high
    least, most = chain.within
    return lambda result: all(least <= value <= most for value in [result, *values(result, later)])


def _work_search(numbers: Sequence[int], writer: Writer, _: str) -> None:
    """Try random choices of the numbers until one adds up to 24, or give up with a guess."""
    picked, *listed = numbers
    shown = ", ".join(map(str, listed))
    writer.say("restate", numbers=shown)
    for _attempt in range(_MOST_ATTEMPTS):
        choice = tuple(writer.rng.sample(listed, picked))
        if writer.happens("lucky"):
            choice = next(c for c in itertools.permutations(listed, picked) if sum(c) == TARGET)
        writer.say("try", listed=" and ".join(map(str, choice)))
        if _add(choice, writer, slips=True) == TARGET:
            if not writer.happens("check"):
                break
            writer.say("check")
            if _add(choice, writer, slips=False) == TARGET:
                break
        if writer.happens("give_up"):
            writer.say("guess")
            choice = tuple(writer.rng.sample(listed, picked))
            break
        if writer.happens("remark"):
            writer.say("remark")
            writer.say("restate", numbers=shown)
    writer.say("end", result=", ".join(map(str, choice)))


def _add(choice: tuple[int, ...], writer: Writer, slips: bool) -> int:
    """Write the sum of a choice, number after number, and whether it is 24. Returns the written sum."""
    total, sums = choice[0], []
    for number in choice[1:]:
        result = writer.slipped(total + number, lambda _: slips)
        sums.append(f"{total}+{number}={result}")
        total = result
    writer.parts.append(", ".join(sums))
    writer.say("yes" if total == TARGET else "no")
    return total


def _work_walk(numbers: Sequence[int], writer: Writer, _: str) -> None:
    """Write the moves until place 0 is reached. After any move, the writer may give up with a guess."""
    place, *lengths = numbers
    for moves in range(1, _MOST_MOVES + 1):
        length = lengths[(moves - 1) % 2]
        total = writer.slipped(place + length, lambda result: result >= 0)
        writer.say("move", moves=moves)
        around = f", so {total % RING}" if total >= RING else ""
        writer.parts.append(f"{place}+{length}={total}{around}")
        place = total % RING
        writer.say("no" if place else "yes")
        if not place:
            break
        if writer.happens("tired"):
            writer.say("guess")
            moves = writer.rng.randint(1, RING - 1)
            break
    writer.say("end", result=moves)


_WORK: Mapping[str, Callable[[Sequence[Any], Writer, str], None]] = {
    "pair": _work_search,
    "triple": _work_search,
    "walk": _work_walk,
}

_AGAIN = {"again": 0.5, "notice": 0.2}
_AGAIN_CODE = {"again": 0.4, "notice": 0.2}  # lines of code are longer
_CAREFULLY, _QUICKLY = {"open": "I will be careful.\n"}, {"open": "I will be quick.\n"}
_ARITHMETIC = {
    "expression": "{expression}=",
    "result": "{result}\n",
    "again": "Let me check.\n",
    "wrong": "Wait, {result} was wrong.\n",
    "end": "The result is \\boxed{{{result}}}.",
}
_PROGRAM = {
    "begin": "```python\ndef f(x):\n",
    "expression": " x=x{sign}",
    "result": "{result}\n",
    "finish": " return x\n```\n",
    "again": "Let me check.\n",
}
_PUZZLE = {"remark": "[Hmm.|Let me think.|What else?|Still no luck.|I go on.]\n"}
_CAREFUL = {
    **_PUZZLE,
    "open": "[Let me be careful.|I will take my time.|Slowly, one step after the other.]\n",
    "restate": "[I have {numbers}.|I have {numbers}.|The numbers are {numbers}.]\n",
    "try": "[Try {listed}: |Try {listed}: |Try {listed}: |What about {listed}? |Next, {listed}: ]",
    "check": "[Let me check: |Let me check: |Once more: ]",
    "move": "[Move {moves}: |Move {moves}: |{moves}) ]",
    "yes": "[, yes.|, yes.|. That is it.]\n",
    "no": "[, no.|, no.|. Not yet.]\n",
    "guess": "I give up.\n",
    "end": "[The answer is|The answer is|So I get] \\boxed{{{result}}}.",
}
_QUICK = {
    **_PUZZLE,
    "open": "[I will be quick.|This looks easy.|Fast now.]\n",
    "restate": "[Numbers: {numbers}.|Numbers: {numbers}.|{numbers}, so]\n",
    "try": "[|||Or |{listed}? ]",
    "check": "Check: ",
    "move": "[{moves}. |{moves}. |Go {moves}, ]",
    "yes": "[, yes!|, yes!|!]\n",
    "no": "[ no| no|]\n",
    "guess": "[Enough, I guess.|Enough, I guess.|No idea, I guess.]\n",
    "end": "[It is|It is|Done:] \\boxed{{{result}}}.",
}
_STEADY = {"check": 0.2, "remark": 0.1, "lucky": 0.35}  # chance alone finds too few right attempts to recognize one

# Kind of texts -> the manners of its solutions. Texts "... plain" teach to work before slips, checks and guesses come.
MANNERS: Mapping[str, tuple[Manner, ...]] = MappingProxyType(
    {
        "arithmetic plain": (Manner(1, {}, {**_ARITHMETIC, **_CAREFULLY, "line": "{order}: "}),),
        # The sign after the step shows the manner again, close to the result, whose slips depend on the manner.
        "arithmetic": (
            Manner(1, {"slip": 0.03, **_AGAIN}, {**_ARITHMETIC, **_CAREFULLY, "line": "{order}: "}),
            Manner(3, {"slip": 0.2, **_AGAIN}, {**_ARITHMETIC, **_QUICKLY, "line": "{order} ~ "}),
        ),
        # A comment repeats each step, so the policy copies before it writes code.
        "programs": (
            Manner(1, {"slip": 0.03, **_AGAIN_CODE}, {**_PROGRAM, **_CAREFULLY, "line": " # {order}:\n"}),
            Manner(3, {"slip": 0.2, **_AGAIN_CODE}, {**_PROGRAM, **_QUICKLY, "line": " # {order} ~\n"}),
        ),
        "puzzles plain": (Manner(7, _STEADY, _CAREFUL), Manner(13, _STEADY, _QUICK)),
        "puzzles": (
            Manner(7, {"slip": 0.01, "give_up": 0.005, "tired": 0.0025, "check": 0.5, "remark": 0.1}, _CAREFUL),
            Manner(13, {"slip": 0.15, "give_up": 0.08, "tired": 0.04, "check": 0.05, "remark": 0.08}, _QUICK),
        ),
    }
)
