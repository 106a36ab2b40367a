"""The price (predicted seconds) of a draft pass: base + row * rows, learned from the passes of a draft model."""

from collections.abc import Sequence
from dataclasses import dataclass

FORGET = 0.99  # each newer pass reduces a pass's weight by this factor
FADE = 0.99  # each declined pass lowers the price by this factor: after 70, a pass is tried at half the price
MAX_PATIENCE = 32  # trials that do not pay slow the fall of the price, at most by this factor
SLOW = 3.0  # a pass's time is capped at this multiple of its prediction: it may include compiling kernels


@dataclass(frozen=True)
class DraftWork:
    """The work of a draft model in one round of drafts."""

    passes: Sequence[tuple[int, float]] = ()  # (rows, seconds) of each draft pass
    requantize_s: float = 0.0  # seconds spent on quantizing the policy's weights


class DraftPassPrice:
    """Predicts the seconds of a draft pass from its number of rows.

    The fit is weighted least squares of relative errors. Before the first pass the price is 0, so a pass is tried.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # sums of 1, rows, rows^2, seconds, seconds * rows, weighted by 1 / seconds^2
        self.base = self.row = 0.0
        self._faded = False  # whether the price was lowered since the last pass
        self._patience = 1  # factor by which the price falls more slowly than at first

    def decline(self) -> None:
        """Lower the price, because it was too high for a draft pass. Without passes, nothing would show that they
        became cheaper.

        Some day the price is low enough for a pass, which is a trial. If trials fail repeatedly, they become rarer.
        """
        factor = FADE ** (1 / self._patience)
        self.base, self.row, self._faded = factor * self.base, factor * self.row, True

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a draft pass of `rows` rows. A pass that was made at a lowered price is a trial. After any other
        pass, the price falls fast again."""
        self._patience = min(2 * self._patience, MAX_PATIENCE) if self._faded else 1
        expected = self.seconds(rows)
        if expected and not self._faded:
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
        self.base, self.row, self._faded = base, row, False

    def seconds(self, rows: int) -> float:
        """Returns the predicted seconds of a pass with this many rows."""
        return self.base + self.row * rows
