"""Walks: equal moves around a ring until a place is reached. How many moves it takes, only walking them shows."""

from __future__ import annotations

import random

from experiments.small_policy.puzzles.habits import Writer

RING = 20  # places 0..19
_STEPS = (3, 7, 9, 11, 13, 17)  # no common divisor with 20, so that a walk visits all places
_QUESTIONS = (
    "From {start}, each move adds {step}; from 20 on take 20 away. How many moves to {goal}?",
    "Start at {start} on a ring of 20. Each move adds {step}. When are you at {goal}?",
)


def draw(moves: int, rng: random.Random) -> tuple[str, str, list[int]]:
    """Return question, answer and the start, step and goal of a puzzle that takes `moves` moves, at most 19."""
    start, step = rng.randrange(RING), rng.choice(_STEPS)
    goal = (start + moves * step) % RING
    return rng.choice(_QUESTIONS).format(start=start, step=step, goal=goal), str(moves), [start, step, goal]


def work(values: list[int], writer: Writer) -> None:
    """Walk until the goal is reached, at most 25 moves; give up as the manner likes."""
    place, step, goal = values
    moves = 0
    while moves < 25:
        moves += 1
        total = writer.slipped(place + step)
        writer.say(("Move {moves}: ", "{moves}) "), ("{moves}. ", "Go {moves}, "), moves=moves)
        writer.text += f"{place}+{step}={total}"
        place = total % RING
        if total >= RING:
            writer.text += f", so {place}"
        if place == goal:
            writer.say((", there.\n",), ("!\n",))
            break
        writer.say((".\n", ", not {goal}.\n"), ("\n",), goal=goal)
        if writer.happens(writer.manner.give_up / 2):
            writer.say(("I give up.\n",), ("Enough, I guess.\n", "No idea, I guess.\n"))
            moves = writer.rng.randint(1, RING - 1)
            break
    writer.box(str(moves))
