"""Exploration: which passes are spent on learning prices, and how much time they may cost.

A *control* is a pass without drafts. It shows what a plain pass takes now. A *trial* verifies more than seems to pay. It
shows whether prices are still what they were. Both may cost SHARE of the time since the last of their kind, so a dear
trial is a rare one, and trials that find nothing become rarer still. One pass of unexpected length is no loss that comes
back: what it showed is remembered until a trial shows something else.
"""

SHARE = 0.01  # of the time since the last control, or the last trial
FIRST_PLAIN = 3  # passes of a new engine that carry no drafts
APART = 8  # plain passes' time between two trials; it doubles with each trial that finds nothing
MAX_DOUBLINGS = 6
FOUND = 0.95  # a trial that takes less than this share of its predicted time has found lower prices


class Exploration:
    """The clock of one budget's controls and trials. Times are in seconds."""

    def __init__(self) -> None:
        self._now = 0.0  # seconds of all passes
        self._plain = 0  # passes without drafts
        self._last_plain = self._last_trial = self._next_trial = 0.0
        self._vain = 0  # trials in a row that found nothing
        self._expected: float | None = None  # predicted time of the trial that is under way

    def control_due(self, cost: float) -> bool:
        """Whether the coming pass carries no drafts. cost: seconds that drafts would save in it."""
        return self._plain < FIRST_PLAIN or cost < SHARE * (self._now - self._last_plain)

    @property
    def trial_due(self) -> bool:
        """Whether a trial may be made, if it is cheap enough."""
        return self._plain >= FIRST_PLAIN and self._now >= self._next_trial

    @property
    def allowance(self) -> float:
        """Seconds that a trial may cost now."""
        return SHARE * (self._now - self._last_trial)

    def begin_trial(self, expected: float, plain: float) -> None:
        """The coming pass is a trial. expected, plain: its predicted time, and that of a plain pass."""
        self._expected = expected
        self._last_trial = self._now
        self._next_trial = self._now + plain * APART * 2**self._vain

    def observe(self, seconds: float, drafted: bool) -> None:
        """A pass is over."""
        self._now += seconds
        if not drafted:
            self._plain += 1
            self._last_plain = self._now
        elif self._expected is not None:
            self._vain = 0 if seconds < FOUND * self._expected else min(self._vain + 1, MAX_DOUBLINGS)
        self._expected = None
