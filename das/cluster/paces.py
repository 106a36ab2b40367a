"""Finds engines so slow that idle engines should start the requests of the slow ones again.

Nobody knows when a response ends. Assume that half of its passes are done, and let an idle engine need 1 unit of time
for half of the passes. The slow engine, whose passes take k times as long, needs k units for the other half. An idle
engine that starts again needs 2 units for both halves. So a new start pays if k is above 2. `SLOW` is larger, because
pass times are noisy and depend on the number of requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SLOW = 3.0  # a slow engine's passes take at least this multiple of an idle engine's
PATIENCE_S = 1.0  # seconds that an engine must have had requests before it is judged


@dataclass
class _Pace:
    asked: float  # when the engine last answered or got its first requests
    passes: int  # passes that it had finished by then
    busy_s: float = 0.0  # seconds in which it had requests
    made: int = 0  # passes that it finished in these seconds


class Paces:
    """Counts the passes of each engine in one rollout, and the time that they take. Times are seconds of one clock.

    Call `began` first for each engine. The other methods raise KeyError for an engine that did not begin.
    """

    def __init__(self) -> None:
        self._paces: dict[int, _Pace] = {}

    def began(self, engine: int, passes: int, now: float) -> None:
        """Note that an engine begins without requests, after this many passes since it was built."""
        self._paces[engine] = _Pace(now, passes)

    def took(self, engine: int, now: float) -> None:
        """Note that an engine without requests gets requests now. The time before does not count."""
        self._paces[engine].asked = now

    def heard(self, engine: int, passes: int, now: float) -> None:
        """Note an engine's number of passes since it was built. The engine has had requests since its last answer."""
        pace = self._paces[engine]
        pace.busy_s += now - pace.asked
        pace.made += passes - pace.passes
        pace.asked, pace.passes = now, passes

    def slow(self, holding: Iterable[int], idle: Iterable[int], now: float) -> list[int]:
        """Returns the slow engines of `holding`, which have requests, the slowest first.

        An engine is slow if its passes take at least SLOW times as long as those of the slowest idle engine did. So no
        engine is slow while none is idle, or while the idle ones have made no pass.
        """
        idle_s = [self._pass_s(engine, 0.0) for engine in idle if self._paces[engine].made]
        if not idle_s:
            return []
        silent = {engine: self.silent_s(engine, now) for engine in holding}
        pass_s = {
            engine: self._pass_s(engine, silent_s)
            for engine, silent_s in silent.items()
            if self._paces[engine].busy_s + silent_s >= PATIENCE_S
        }
        slow = [engine for engine, seconds in pass_s.items() if seconds >= SLOW * max(idle_s)]
        return sorted(slow, key=lambda engine: -pass_s[engine])

    def pace(self, engine: int, silent_s: float = 0.0) -> float:
        """Returns the time of the engine's passes, divided by that of the fastest engine's; 1 if this is below SLOW or
        unknown.

        silent_s: seconds with requests since the engine last answered.
        """
        fastest = min((self._pass_s(each, 0.0) for each, pace in self._paces.items() if pace.made), default=0.0)
        pace = self._pass_s(engine, silent_s) / fastest if fastest else 1.0
        return pace if pace >= SLOW else 1.0

    def silent_s(self, engine: int, now: float) -> float:
        """Returns the seconds since the engine last answered or got its first requests."""
        return now - self._paces[engine].asked

    def _pass_s(self, engine: int, silent_s: float) -> float:
        """Returns the engine's seconds per pass. silent_s: seconds with requests since the engine last answered."""
        pace = self._paces[engine]
        return (pace.busy_s + silent_s) / max(1, pace.made)
