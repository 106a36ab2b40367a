"""Totals: the sum of a list of numbers, worked out one number after the other, perhaps more than once."""

from __future__ import annotations

import random

from experiments.small_policy.puzzles.habits import Writer

MAX_PASSES = 4
LARGEST = 9
LABELS = "abcdefghijkl"
_QUESTIONS = ("What is the total of {numbers}?", "Add all of these: {numbers}")


def draw(listed: int, rng: random.Random) -> tuple[str, str, list[int]]:
    """Return question, answer and the numbers of a puzzle that lists `listed` of them."""
    numbers = [rng.randint(1, LARGEST) for _ in range(listed)]
    labelled = ";".join(f"{label}={number}" for label, number in zip(LABELS, numbers, strict=False))
    return rng.choice(_QUESTIONS).format(numbers=labelled), str(sum(numbers)), numbers


def work(values: list[int], writer: Writer) -> None:
    """Add number after number; check as often as the manner likes, and write the total."""
    totals = _pass(values, [], writer)
    for _ in range(MAX_PASSES - 1):
        if not writer.happens(writer.manner.check):
            break
        writer.say(("Let me check.\n", "Once more.\n"), ("Quick check.\n", "Again.\n"))
        totals = _pass(values, totals, writer)
    writer.box(str(totals[-1]))


def _pass(values: list[int], before: list[int], writer: Writer) -> list[int]:
    """Write one pass over the numbers. before: the totals of an earlier pass, whose slips this one may notice."""
    totals: list[int] = []
    for index, number in enumerate(values[1:]):
        previous = totals[-1] if totals else values[0]
        if before and writer.happens(writer.manner.notice):
            total = previous + number
        elif before and previous == (before[index - 1] if index else values[0]):
            total = before[index]
        else:
            total = writer.slipped(previous + number)
        writer.say(
            ("{label}: {sum}.\n", "{label} next: {sum}.\n"),
            ("{label}, {sum}\n", "{label}! {sum}\n"),
            label=LABELS[index + 1],
            sum=f"{previous}+{number}={total}",
        )
        totals.append(total)
    return totals
