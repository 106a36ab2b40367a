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
    """One question, with the gold answer as text, and the start value and the steps that it asks for."""

    problem_id: str
    question: str
    answer: str
    start: int
    steps: tuple[Step, ...]


def chain_problem(task: str, start: int, steps: Sequence[Step]) -> ChainProblem:
    """The problem that asks for the result of these steps."""
    text = question(start, steps, "result")
    return ChainProblem(problem_id(task, text), text, str(values(start, steps)[-1]), start, tuple(steps))


def question(start: int | str, steps: Sequence[Step], asked: str) -> str:
    """The text of a question. asked: what it asks for."""
    orders = "".join(f"{order(index, step)}\n" for index, step in enumerate(steps))
    return f"Start with {start}\n{orders}What is the {asked}?"


def order(index: int, step: Step) -> str:
    """A step in the words of the question, which solutions repeat."""
    return f"{LABELS[index]}) {_VERBS[step[0]]} {step[1]}"


def apply(value: int, step: Step) -> int:
    """The result of a step."""
    sign, operand = step
    if sign == "+":
        return value + operand
    return value - operand if sign == "-" else value * operand


def values(start: int, steps: Iterable[Step]) -> list[int]:
    """The right result after every step."""
    results: list[int] = []
    for step in steps:
        results.append(apply(results[-1] if results else start, step))
    return results
