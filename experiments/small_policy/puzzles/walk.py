"""Walks: moves around a ring until place 0 is reached. How many moves it takes, only walking them shows."""

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
    """Return question, answer, and the start and both steps of a puzzle that takes `moves` moves."""
    while True:
        start, first, second = rng.randrange(1, RING), rng.randint(1, LARGEST_STEP), rng.randint(1, LARGEST_STEP)
        places = _places(start, (first, second), moves)
        if 0 not in places[:-1] and places[-1] == 0:
            question = rng.choice(_QUESTIONS).format(start=start, first=first, second=second)
            return question, str(moves), [start, first, second]


def _places(start: int, steps: tuple[int, int], moves: int) -> list[int]:
    """The place after each move."""
    place, places = start, []
    for move in range(moves):
        place = (place + steps[move % 2]) % RING
        places.append(place)
    return places


def work(values: list[int], writer: Writer) -> None:
    """Walk until place 0 is reached, at most MAX_MOVES moves; give up as the manner likes."""
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
