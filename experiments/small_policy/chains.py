"""Chains of small steps (add, subtract, times), and the questions that ask for their result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.small_policy.questions import problem_id

Step = tuple[str, int]  # sign and operand
LABELS = "abcdefgh"
_VERBS = {"+": "add", "-": "subtract", "*": "times"}


@dataclass(frozen=True)
class ChainProblem:
    """One question with its start value and its steps. answer: the gold answer as text."""

    problem_id: str
    question: str
    answer: str
    start: int
    steps: tuple[Step, ...]


def chain_problem(task: str, start: int, steps: Sequence[Step]) -> ChainProblem:
    """Return the problem that asks for the result of these steps. task: the task's name, for the id."""
    text = question(start, steps, "result")
    return ChainProblem(problem_id(task, text), text, str(values(start, steps)[-1]), start, tuple(steps))


def question(start: int | str, steps: Sequence[Step], asked: str) -> str:
    """Return the text of a question. asked: the word for what is asked, such as "result"."""
    orders = "".join(f"{order(index, step)}\n" for index, step in enumerate(steps))
    return f"Start with {start}\n{orders}What is the {asked}?"


def order(index: int, step: Step) -> str:
    """Return a step in words, such as "a) add 3". Questions and solutions write a step in the same words."""
    return f"{LABELS[index]}) {_VERBS[step[0]]} {step[1]}"


def apply(value: int, step: Step) -> int:
    """Return the result of applying a step to a value."""
    sign, operand = step
    if sign == "+":
        return value + operand
    return value - operand if sign == "-" else value * operand


def values(start: int, steps: Iterable[Step]) -> list[int]:
    """Return the right result after every step."""
    results: list[int] = []
    for step in steps:
        results.append(apply(results[-1] if results else start, step))
    return results
