"""Walks: moves around a ring until place 0 is reached. One must walk them to learn how many moves that takes."""

from __future__ import annotations

import random

from experiments.small_policy.puzzles.habits import Writer

RING = 20  # places 0..19
LARGEST_STEP = 19
MAX_MOVES = 25
_QUESTIONS = (
    "From {start}, moves add {first} and {second} in turn; from 20 on take 20 away. How many moves to 0?",
    "Start at {start} on a ring of 20. Add {first}, then {second}, and so on. When are you at 0?",
)


def draw(moves: int, rng: random.Random) -> tuple[str, str, list[int]]:
    """Draw a puzzle that takes `moves` moves. Returns its question, its answer, and three numbers: the start and the
    two steps."""
    while True:
        start, first, second = rng.randrange(1, RING), rng.randint(1, LARGEST_STEP), rng.randint(1, LARGEST_STEP)
        places = _places(start, (first, second), moves)
        if 0 not in places[:-1] and places[-1] == 0:
            question = rng.choice(_QUESTIONS).format(start=start, first=first, second=second)
            return question, str(moves), [start, first, second]


def _places(start: int, steps: tuple[int, int], moves: int) -> list[int]:
    """Return the place after each of `moves` moves. steps: the lengths of every first and every second move."""
    place, places = start, []
    for move in range(moves):
        place = (place + steps[move % 2]) % RING
        places.append(place)
    return places


def work(values: list[int], writer: Writer) -> None:
    """Write the moves until place 0 is reached, at most MAX_MOVES. After any move, the writer may give up with a guess.
    values: the start and the two steps, from `draw`."""
    place, *steps = values
    moves = 0
    while moves < MAX_MOVES:
        step = steps[moves % 2]
        moves += 1
        total = writer.slipped(place + step)
        writer.say(("Move {moves}: ", "{moves}) "), ("{moves}. ", "Go {moves}, "), moves=moves)
        writer.text += f"{place}+{step}={total}"
        place = total % RING
        if total >= RING:
            writer.text += f", so {place}"
        writer.judge(place == 0)
        if place == 0:
            break
        if writer.happens(writer.manner.give_up / 2):
            writer.guess()
            moves = writer.rng.randint(1, RING - 1)
            break
    writer.box(str(moves))
