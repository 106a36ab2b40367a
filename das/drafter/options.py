"""The history drafter's options and defaults, defined here only.

`HistoryDrafter` and the reference take their defaults from here. configs/drafter/history.yaml documents the same values
for the command line, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from das.drafter import checks

REMEMBERED = ("tokens", "distributions")
UNITS = ("epoch", "step")  # units of a history tick; the caller chooses, because it moves the window
DEFAULT_UNIT = "epoch"


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
