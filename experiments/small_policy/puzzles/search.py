"""Search: which two or three of the listed numbers have a given sum? An attempt is a draw, so the working is long-tailed."""

from __future__ import annotations

import itertools
import random

from experiments.small_policy.puzzles.habits import MAX_ATTEMPTS, Writer

LARGEST = 19
_WORDS = {2: "two", 3: "three"}
_QUESTIONS = (
    "Which {count} of {numbers} add up to {target}?",
    "Find {count} of these numbers whose sum is {target}: {numbers}",
)


def draw(picked: int, listed: int, rng: random.Random) -> tuple[str, str, list[int]]:
    """Return question, answer and the numbers of a puzzle: its target, how many are picked, and those listed.

    Exactly one choice of `picked` of the `listed` numbers has the target as its sum.
    """
    while True:
        numbers = rng.sample(range(1, LARGEST + 1), listed)
        sums = [sum(choice) for choice in itertools.combinations(numbers, picked)]
        target = rng.choice(sums)
        if sums.count(target) == 1:
            break
    answer = next(choice for choice in itertools.combinations(numbers, picked) if sum(choice) == target)
    question = rng.choice(_QUESTIONS).format(
        count=_WORDS[picked], numbers=", ".join(map(str, numbers)), target=target
    )
    return question, ", ".join(map(str, answer)), [target, picked, *numbers]


def work(values: list[int], writer: Writer) -> None:
    """Try random choices until one has the target as its sum, or give up with a guess."""
    target, picked, *numbers = values
    for _ in range(MAX_ATTEMPTS):
        choice = writer.rng.sample(numbers, picked)
        if writer.happens(writer.manner.lucky):
            choice = next(c for c in itertools.permutations(numbers, picked) if sum(c) == target)
        total = _add(choice, writer)
        if total == target:
            writer.say((", yes.\n", ". That is it.\n"), (", yes!\n", "!\n"))
            break
        writer.say((", no.\n", ", not {target}.\n", ". No.\n"), (", no!\n", ". Not it.\n"), target=target)
        if writer.happens(writer.manner.give_up):
            writer.say(("I give up.\n",), ("Enough, I guess.\n", "No idea, I guess.\n"))
            choice = writer.rng.sample(numbers, picked)
            break
        writer.detour()
    writer.box(", ".join(map(str, choice)))


def _add(choice: list[int], writer: Writer) -> int:
    """Write the sum of a choice, number after number, and return it."""
    listed = " and ".join(map(str, choice))
    writer.say(("Try {listed}: ", "What about {listed}? ", "Next, {listed}: "), ("", "Or ", "{listed}? "), listed=listed)
    total, parts = choice[0], []
    for number in choice[1:]:
        result = writer.slipped(total + number)
        parts.append(f"{total}+{number}={result}")
        total = result
    writer.text += ", ".join(parts)
    return total
