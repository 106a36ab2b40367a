"""The history drafter's options and defaults, defined here only.

`HistoryDrafter` and the reference take their defaults from here. configs/drafter/history.yaml documents the same values
for the command line, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from das.drafter import checks

ORDERS = (1, 2, 4)  # n-gram sizes that are indexed (index.h); adding 8 gains 0.7 % tokens per pass for 9 bytes a token
VISITS = (24, 32, 32)  # occurrences visited per order; a lookup in other problems also counts those that it skips
FALLBACK_VISITS = 8  # the same in fallback lookups; after a drafted token, also the most candidates in total
MAX_MATCH = 32  # tokens; matches are compared up to this length
PROMPT_CONTEXT = 32  # last prompt tokens stored before a response; before a later turn they reach to a tool's result
SHARED_TEXTS = 8  # newest texts of a problem that other problems see; within a tick, the first to finish
PLACES = 16  # if drafts use the noise: most occurrences in the problem for the first token; 64 gain 0.2 %
AGREEING = 2  # the same: if the nearest occurrence disagrees and at most so many agree, look up again
CROSS_PROBLEM_CANDIDATES = 4  # occurrences in other problems considered per lookup


REMEMBERED = ("tokens", "distributions")
UNITS = ("epoch", "step")  # units of a history tick; the caller chooses, because it moves the window
DEFAULT_UNIT = "epoch"


def check_unit(unit: object) -> None:
    """Raise ValueError with a one-line message unless this is one of UNITS."""
    if unit not in UNITS:
        raise ValueError(f"drafter unit {unit!r}: choose {' or '.join(UNITS)}")


@dataclass(frozen=True)
class DrafterOptions:
    """Options of `HistoryDrafter`. Raises ValueError with a one-line message if a value is outside its range."""

    window: int = 16  # number of history ticks (steps or epochs) kept, current one included; 0: no history
    min_prob: float = 0.02  # a draft ends before the probability that all of it is accepted falls below this
    max_candidates: int = 64  # occurrences in the problem considered for each drafted token, at most 256
    cross_problem_tokens: int = 65536  # tokens of finished texts that problems may see of each other; 0: none
    remember: str = "distributions"  # what is stored of a past token: one of REMEMBERED
    warm: str | Path | None = None  # a saved history to start with

    def __post_init__(self) -> None:
        checks.whole_number(self.window, "window", 0, checks.MAX_TICK)
        if self.remember not in REMEMBERED:
            raise ValueError(f"remember must be one of {', '.join(REMEMBERED)}; got {self.remember!r}")
        if not isinstance(self.min_prob, Real) or not 0.0 <= self.min_prob <= 1.0:
            raise ValueError(f"min_prob must be in 0..1, got {self.min_prob!r}")
        checks.whole_number(self.max_candidates, "max_candidates", 1, 256)
        checks.whole_number(self.cross_problem_tokens, "cross_problem_tokens", 0, checks.MAX_TICK)
        if self.warm is not None:
            checks.file_path(self.warm, "warm")


DEFAULTS = DrafterOptions()
