"""What learning and drafting may cost.

Tests are passes that are spent on learning the time of passes. Allowance limits what they cost.

A *control* is a plain pass, which carries no drafts: it shows the time of such passes. A *trial* is a pass with drafts,
or with more drafted tokens, that does not pay at the present times: it shows whether they still hold. A test may cost
SHARE of the time since the last one, so expensive ones are rare. Each test that shows nothing new halves the share, a
few times in a row at most.

Drafting may cost more than it saves although each draft seemed to pay: prices are new, drafts are planned before they
are known, text is not as likely as it looked. Account adds up what it really saved, and ends it before much is lost.
"""

from math import log2

SHARE = 0.01  # share of the time since the last test
MAX_HALVINGS = 3
# What drafting may lose in a rollout: a share of its time, and some passes beyond. With many requests these are fewer,
# because each costs more.
LOSS, PASSES, OF_MANY = 0.005, 2.5, 25.0
# See Account: of a pass's time, for each doubling of the live requests. From EVEN passes on it falls with their root.
SPREAD, EVEN = 0.02, 200


class Allowance:
    """What controls, or trials, may cost. Times are in seconds, counted from the first pass on."""

    def __init__(self) -> None:
        self._last = 0.0  # end of the last test
        self._next = 0.0  # when one is due
        self._vain = self._put_off = 0  # in a row: tests that showed nothing new, tests that were due but too expensive

    def seconds(self, now: float) -> float:
        """Returns the seconds that a test may cost now."""
        return float(SHARE / 2 ** min(self._vain, MAX_HALVINGS) * (now - self._last))

    def due(self, now: float) -> bool:
        """Returns whether it is time to think of a test."""
        return now >= self._next

    def spent(self, now: float, new: bool, pause: float = 0.0) -> None:
        """Note a test. new: whether it showed anything new. pause: until the next one is due, the first time."""
        self._last, self._put_off = now, 0
        self._vain = 0 if new else min(self._vain + 1, 2 * MAX_HALVINGS)
        self._next = now if new else now + pause * 2**self._vain

    def put_off(self, now: float, pause: float) -> None:
        """Note that a test is due but is too expensive or not worth its time; each time in a row it waits longer."""
        self._next = now + pause * 2**self._put_off
        self._put_off = min(self._put_off + 1, 2 * MAX_HALVINGS)


class Account:
    """Says when drafting must rest, so that a rollout takes hardly longer than without drafts.

    It adds up the seconds that drafting saved, for each octave of live requests. Requests gain unequally, and the
    slowest one ends the rollout, so a drafted pass must save a bit more than nothing on average.
    """

    def __init__(self) -> None:
        self._saved: dict[int, float] = {}  # by the octave
        self._resting: set[int] = set()  # octaves in which drafting rests
        self._elapsed, self._passes = 0.0, 0

    def note(self, live: int, saved: float, seconds: float, plain: float) -> None:
        """Note a pass. saved: seconds against passes at rest that emit as many tokens for each request; 0 for a pass at
        rest. plain: seconds of such a pass."""
        octave = int(log2(live))
        self._passes += 1
        self._elapsed += seconds
        spread = SPREAD * log2(live) * min(1.0, EVEN / self._passes) ** 0.5
        balance = self._saved.get(octave, 0.0) + (saved - spread * seconds if saved else 0.0)
        self._saved[octave] = balance
        # A debt that is small again lets drafting go on: at rest the limit grows.
        limit = LOSS * self._elapsed + plain * (octave not in self._resting) * min(PASSES, OF_MANY / live)
        if balance < 0 and sum(min(0.0, each) for each in self._saved.values()) < -limit:
            self._resting.add(octave)
        else:
            self._resting.discard(octave)

    def overdrawn(self, live: int) -> bool:
        """Whether drafting must rest with so many live requests."""
        return int(log2(live)) in self._resting
