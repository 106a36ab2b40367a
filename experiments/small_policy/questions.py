"""Make distinct questions for each split: the warm start, the training by reinforcement, the evaluation.

A hash of the question decides its split. So no two splits share a question, whatever their seeds and sizes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeVar

Split = Literal["warm_start", "training", "evaluation"]
# A hash falls into one of 8 slots. These slots belong to each split.
SLOTS: Mapping[Split, tuple[int, ...]] = {"warm_start": (0, 1, 2, 3, 4), "training": (5, 6), "evaluation": (7,)}


class Asked(Protocol):
    """Any problem that has a question as text."""

    @property
    def question(self) -> str: ...


Problem = TypeVar("Problem", bound=Asked)


def slot(text: str) -> int:
    """Return the slot of a text, 0 to 7."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 8


def problem_id(task: str, question: str) -> str:
    """Return the id of a problem. It is the same in every run."""
    return f"{task}-{hashlib.sha256(question.encode()).hexdigest()[8:20]}"


def distinct(
    count: int,
    mix: Mapping[int, float],
    rng: random.Random,
    draw: Callable[[int, random.Random], Problem],
    slots: tuple[int, ...],
) -> list[Problem]:
    """Return ``count`` problems with different questions, whose hashes lie in ``slots``.

    mix: number of steps -> relative frequency. draw: draws a problem with this number of steps. Raises ValueError if
    there are too few questions.
    """
    problems: dict[str, Problem] = {}
    for _ in range(1000 + 100 * count):
        if len(problems) == count:
            break
        problem = draw(rng.choices(list(mix), list(mix.values()))[0], rng)
        if slot(problem.question) in slots:
            problems.setdefault(problem.question, problem)
    if len(problems) < count:
        raise ValueError(f"the mix {dict(mix)} offers too few distinct questions for {count} problems")
    return list(problems.values())
