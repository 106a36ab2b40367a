"""The price of a draft pass: base + row * rows, learned from the passes of a drafter that is a model."""

from collections.abc import Sequence
from dataclasses import dataclass

FORGET = 0.99  # each newer pass reduces a pass's weight by this factor
FADE = 0.99  # of a pass that was not made because of its price; after 70 of them it is tried at half the price
MAX_PATIENCE = 32  # after trials that did not pay, the price falls so many times more slowly, at most
SLOW = 3.0  # a pass counts as at most so many times as slow as expected: its kernels may have been prepared in it


@dataclass(frozen=True)
class DraftWork:
    """What a drafter that is a model did in a round of drafts."""

    passes: Sequence[tuple[int, float]] = ()  # rows and seconds of each
    requantize_s: float = 0.0  # seconds in which it quantized the policy's weights


class DraftPassPrice:
    """Seconds of a draft pass by the number of rows that it computes.

    Weighted least squares of relative errors. Before the first pass a pass costs nothing, so that one is tried.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of 1, rows, rows^2, seconds, seconds * rows; each weighted by 1 / seconds^2
        self.base = self.row = 0.0
        self.faded = False  # whether the price was lowered since the last pass
        self._patience = 1  # how many times more slowly than at first the price falls

    def fade(self, factor: float = FADE) -> None:
        """Lower the price until the next pass: nothing else would show that passes have become cheaper."""
        self.base, self.row, self.faded = factor * self.base, factor * self.row, True

    def decline(self) -> None:
        """No pass was made because of its price, which fades. Trials in a row that do not pay come ever later."""
        self.fade(FADE ** (1 / self._patience))

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a pass of so many rows. One that was made at a price that had faded is a trial; one that was made
        at the price that the last pass showed says that trials need not come late any more.
        """
        self._patience = min(2 * self._patience, MAX_PATIENCE) if self.faded else 1
        expected = self.seconds(rows)
        if expected and not self.faded:
            seconds = min(seconds, SLOW * expected)
        weight = 1 / seconds**2
        terms = (1.0, rows, rows * rows, seconds, seconds * rows)
        self._sums = [FORGET * old + weight * term for old, term in zip(self._sums, terms, strict=True)]
        count, x, xx, y, xy = self._sums
        spread = count * xx - x * x
        row = (count * xy - x * y) / spread if spread > 1e-9 * count * xx else 0.0
        base = (y - row * x) / count
        if row < 0:
            row, base = 0.0, y / count
        elif base < 0:
            row, base = xy / xx, 0.0
        self.base, self.row, self.faded = base, row, False

    def seconds(self, rows: int) -> float:
        """What a pass of so many rows is expected to take."""
        return self.base + self.row * rows
