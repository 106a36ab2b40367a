"""Make puzzles of several kinds and difficulties, and write worked solutions to them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from experiments.small_policy.puzzles import search, walk
from experiments.small_policy.puzzles.habits import DEFAULT_HABITS, Habits, Writer
from experiments.small_policy.questions import SLOTS, Split, slot

Drawn = tuple[str, str, list[int]]  # question, answer, and the numbers that `search.work` or `walk.work` needs

# Kind -> difficulties, from easy to hard: the count of listed numbers (pair, triple) or of moves (walk).
DIFFICULTIES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"pair": (5, 6, 7, 8), "triple": (4, 5, 6), "walk": tuple(range(3, 13))}
)
# Kind -> relative frequency.
DEFAULT_KINDS: Mapping[str, float] = MappingProxyType({"pair": 3, "triple": 3, "walk": 2})
MOST_IN_VAIN = 500  # after so many draws in a row without a new puzzle, none is left
_DRAW: Mapping[str, Callable[[int, random.Random], Drawn]] = {
    "pair": lambda listed, rng: search.draw(2, listed, rng),
    "triple": lambda listed, rng: search.draw(3, listed, rng),
    "walk": walk.draw,
}
_WORK: Mapping[str, Callable[[list[int], Writer], None]] = {
    "pair": search.work,
    "triple": search.work,
    "walk": walk.work,
}


@dataclass(frozen=True)
class Puzzle:
    """One question, with the gold answer as text. The id is a hash of the question, so it is the same in every run."""

    problem_id: str
    question: str
    answer: str
    kind: str
    values: tuple[int, ...]


def make_puzzles(count: int, seed: int, kinds: Mapping[str, float], split: Split = "warm_start") -> list[Puzzle]:
    """Return ``count`` distinct puzzles of one split. The same arguments always give the same list.

    kinds: kind -> relative frequency. Kinds and difficulties take turns instead of being drawn, so that even a few
    puzzles are well mixed. Raises ValueError if there are too few questions.
    """
    rng = random.Random(f"puzzles/{seed}")
    puzzles: dict[str, Puzzle] = {}
    dealt = dict.fromkeys(kinds, 0)
    in_vain = 0
    while len(puzzles) < count:
        if in_vain > MOST_IN_VAIN:
            raise ValueError(f"the kinds {dict(kinds)} offer too few distinct questions for {count} puzzles")
        kind = max((kind for kind in kinds if kinds[kind]), key=lambda kind: kinds[kind] / (dealt[kind] + 1))
        difficulties = DIFFICULTIES[kind]
        question, answer, values = _DRAW[kind](difficulties[-1 - dealt[kind] % len(difficulties)], rng)
        in_vain += 1
        # Neither the wording nor the order of the numbers changes the slot, so no two splits share a puzzle.
        if slot(f"{kind} {sorted(values)}") in SLOTS[split] and question not in puzzles:
            in_vain = 0
            digest = hashlib.sha256(question.encode()).hexdigest()
            puzzles[question] = Puzzle(f"puzzles-{digest[:12]}", question, answer, kind, tuple(values))
            dealt[kind] += 1
    return list(puzzles.values())


def worked_solution(puzzle: Puzzle, rng: random.Random, habits: Habits = DEFAULT_HABITS, plain: bool = False) -> str:
    """Write one solution of ``puzzle``. plain: without slips and guesses."""
    careful = rng.random() < habits.careful_share
    manner = habits.plain if plain else habits.careful if careful else habits.quick
    writer = Writer(rng, careful, manner)
    writer.open()
    _WORK[puzzle.kind](list(puzzle.values), writer)
    return writer.text
