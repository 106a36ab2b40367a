"""Exploration decides which passes are spent on learning prices (the seconds that tokens cost), and limits their time.

A *control* is a plain pass, which carries no drafts: it measures the time of such passes. A *trial* verifies more
tokens than pay at the present prices: it shows whether the prices still hold. (das.budget.prices asks for further
controls, to tell a slow machine from expensive drafts.) A control or trial may cost SHARE of the time since the last
one, so expensive ones are rare. Each control or trial that shows nothing new halves the share, a few times in a row at
most.
"""

SHARE = 0.01  # share of the time since the last control or trial
MAX_HALVINGS = 3
FIRST_PLAIN = 3  # passes of a new engine that carry no drafts
APART = 8  # time between two trials, in plain passes; it doubles after each trial that shows nothing new
MAX_DOUBLINGS = 6
FOUND = 0.95  # a trial faster than this share of its predicted time has found lower prices
AS_EXPECTED = 0.05  # a control shows nothing new within this relative error, or within twice the usual error


class Exploration:
    """Decides when a budget makes a control (a pass without drafts) or a trial (more tokens than seem to pay)."""

    def __init__(self) -> None:
        self._now = 0.0  # seconds of all passes
        self._plain = 0  # passes without drafts
        self._last_plain = self._last_trial = self._next_trial = 0.0
        self._vain_controls = self._vain_trials = 0  # controls and trials in a row that showed nothing new
        self._declined = 0  # number of trials in a row that were due but not made
        self._trial: tuple[float, float] | None = None  # running trial: predicted seconds, seconds of a plain pass

    def control_due(self, cost: float) -> bool:
        """Returns whether the coming pass should be a control. cost: seconds that its drafts would have saved."""
        return self._plain < FIRST_PLAIN or cost < share(self._vain_controls) * (self._now - self._last_plain)

    @property
    def trial_due(self) -> bool:
        """Returns whether a trial may be made now. The caller then makes one only if it finds a cheap enough one."""
        return self._plain >= FIRST_PLAIN and self._now >= self._next_trial

    @property
    def allowance(self) -> float:
        """Returns the seconds that a trial may cost now."""
        return share(self._vain_trials) * (self._now - self._last_trial)

    def forget_trial(self) -> None:
        """Drop a trial whose pass was not observed, because it also computed prompts."""
        self._trial = None

    def begin_trial(self, expected: float, plain: float) -> None:
        """Make the coming pass a trial. expected, plain: predicted seconds of this pass and of a plain pass."""
        self._trial = expected, plain
        self._last_trial = self._now
        self._declined = 0

    def decline_trial(self, plain: float) -> None:
        """Note that a trial is due, but no trial is cheap enough or worth its time. plain: seconds of a plain pass."""
        self._next_trial = self._now + plain * APART * 2**self._declined
        self._declined = min(self._declined + 1, MAX_DOUBLINGS)

    def observe(self, seconds: float, drafted: bool, error: float, usual_error: float) -> None:
        """Note a pass. error: relative error of its predicted time. usual_error: mean of such errors. nan: unknown."""
        self._now += seconds
        if not drafted:
            self._plain += 1
            self._last_plain = self._now
            as_expected = abs(error) < AS_EXPECTED + 2 * usual_error
            self._vain_controls = min(self._vain_controls + 1, MAX_HALVINGS) if as_expected else 0
        if self._trial is not None:
            expected, plain = self._trial
            self._next_trial = self._now + plain * APART * 2**self._vain_trials
            self._vain_trials = 0 if seconds < FOUND * expected else min(self._vain_trials + 1, MAX_DOUBLINGS)
            if not self._vain_trials:
                self._next_trial = self._now
            self._trial = None


def share(vain: int) -> float:
    """Returns the share of time that a control or trial may cost. vain: how many in a row showed nothing new."""
    return float(SHARE / 2 ** min(vain, MAX_HALVINGS))
