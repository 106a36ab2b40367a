"""Make 24: which two or three of the listed numbers add up to 24? Attempts are random, so lengths are long-tailed."""

from __future__ import annotations

import itertools
import random

from experiments.small_policy.puzzles.habits import MAX_ATTEMPTS, Writer

TARGET = 24  # the same in all puzzles; a policy of 2 M parameters would not recognize varying targets
LARGEST = 19
_WORDS = {2: "two", 3: "three"}
_QUESTIONS = (
    "Which {count} of {numbers} add up to 24?",
    "Make 24 of {count} of these numbers: {numbers}",
)


def draw(picked: int, listed: int, rng: random.Random) -> tuple[str, str, list[int]]:
    """Draw a puzzle. Returns its question, its answer, and `picked` followed by the listed numbers.

    listed: how many numbers the question lists. picked: how many of them must add up to 24; only one choice does.
    """
    while True:
        numbers = rng.sample(range(1, LARGEST + 1), listed)
        answers = [choice for choice in itertools.combinations(numbers, picked) if sum(choice) == TARGET]
        if len(answers) == 1:
            break
    question = rng.choice(_QUESTIONS).format(count=_WORDS[picked], numbers=", ".join(map(str, numbers)))
    return question, ", ".join(map(str, answers[0])), [picked, *numbers]


def work(values: list[int], writer: Writer) -> None:
    """Write a search: try random choices of the numbers until one adds up to 24, or give up with a guess. values: from
    `draw`."""
    picked, *numbers = values
    _restate(numbers, writer)
    for _ in range(MAX_ATTEMPTS):
        choice = tuple(writer.rng.sample(numbers, picked))
        if writer.happens(writer.manner.lucky):
            choice = next(c for c in itertools.permutations(numbers, picked) if sum(c) == TARGET)
        total = _add(choice, writer)
        writer.judge(total == TARGET)
        if total == TARGET and _holds(choice, writer):
            break
        if writer.happens(writer.manner.give_up):
            writer.guess()
            choice = tuple(writer.rng.sample(numbers, picked))
            break
        if writer.happens(writer.manner.detour):
            writer.remark()
            _restate(numbers, writer)
    writer.box(", ".join(map(str, choice)))


def _restate(numbers: list[int], writer: Writer) -> None:
    """Write down the numbers of the question once more."""
    writer.say(
        ("I have {numbers}.\n", "The numbers are {numbers}.\n"),
        ("Numbers: {numbers}.\n", "{numbers}, so\n"),
        numbers=", ".join(map(str, numbers)),
    )


def _holds(choice: tuple[int, ...], writer: Writer) -> bool:
    """Check a choice, with the probability of a check. Returns False if the check shows that its sum is not 24."""
    if not writer.happens(writer.manner.check):
        return True
    writer.say(("Let me check: ", "Once more: "), ("Check: ",))
    parts = [f"{sum(choice[:index])}+{choice[index]}={sum(choice[: index + 1])}" for index in range(1, len(choice))]
    writer.text += ", ".join(parts)
    writer.judge(sum(choice) == TARGET)
    return sum(choice) == TARGET


def _add(choice: tuple[int, ...], writer: Writer) -> int:
    """Write the sum of a choice, number after number. Returns the written sum, which a slip may have changed."""
    listed = " and ".join(map(str, choice))
    writer.say(
        ("Try {listed}: ", "What about {listed}? ", "Next, {listed}: "), ("", "Or ", "{listed}? "), listed=listed
    )
    total, parts = choice[0], []
    for number in choice[1:]:
        result = writer.slipped(total + number)
        parts.append(f"{total}+{number}={result}")
        total = result
    writer.text += ", ".join(parts)
    return total
