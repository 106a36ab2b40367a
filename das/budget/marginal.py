"""Marginal budget: verify drafted tokens as long as they lower the time per emitted token.

A pass over n live requests that verifies d drafted tokens takes T(d) seconds (das.budget.latency). It emits n tokens
plus the gains of the drafted tokens. The gain of a drafted token is P(it and all tokens before it in the draft are
accepted). The drafts of the batch are cut to minimise

    T(d) / (n + gains of the d tokens with the highest gains)

T may have knees and stairs, so every d is tried. Gains never rise along a draft, so the tokens with the highest gains
are the beginnings of drafts.

Prices (the values of T) are learned from passes. So no pass verifies many more tokens than were tried before, and some
passes are spent on learning (das.budget.exploration). If drafts do not pay many times in a row, the drafter is called
only now and then. If they cost more than they saved, it rests.
"""

from collections import deque
from collections.abc import Sequence
from ctypes import CDLL, byref, c_double, c_int64, c_void_p
from functools import cache
from math import ceil
from pathlib import Path

import numpy as np

from das.budget.exploration import Account, Allowance
from das.budget.latency import Array, LatencyModel
from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass, drafted_tokens
from das.drafter import Drafts
from das.general.native import load_native

PATIENCE = 8  # after this many passes in a row whose drafts did not pay, the drafter is asked less often
FIRST_WAIT = 8  # number of passes until the drafter is called again; it doubles each time
MAX_WAIT = 512
WORTH_TRYING = 0.05  # a trial must save this share of a plain pass in the best case (tokens cost nothing)
LARGER = 1.25  # least factor between the rows of a trial and those that the prices would choose
FIRST_PLAIN = 3  # passes of a new engine that carry no drafts
APART = 8  # time between two trials, in plain passes; it doubles after each trial that shows nothing new
FOUND = 0.95  # a trial faster than this share of its predicted time has found lower prices
AS_EXPECTED = 0.05  # a control shows nothing new within this relative error, or within twice the usual error
SLOW = 1.25  # a pass with drafts counts at most so many times its predicted time: the rest was an interruption
FREE_FLOOR = 0.1  # if tokens cost nothing, drafts end at this gain, or at half the lowest gain kept, if that is less


@cache
def _native() -> CDLL:
    library = load_native(Path(__file__).with_name("trim.c"))
    library.das_trim.restype = c_int64
    library.das_trim.argtypes = [c_int64, c_int64, *[c_void_p] * 3, c_int64, c_int64, *[c_void_p] * 3]
    return library


def best_tokens(drafts: Drafts, seconds: Array, fixed: int = -1) -> tuple[int, np.ndarray, Array, float]:
    """Choose the drafted tokens that minimise the time per emitted token, or the `fixed` ones with the highest gains
    (-1: not fixed). A token's gain is the probability that it and all tokens before it in its draft are accepted.

    seconds[d]: time of a pass with d drafted tokens. At most len(seconds) - 1 tokens are chosen. Returns the number of
    chosen tokens, the number per draft, the summed gain of the d best tokens for every d, and the lowest chosen gain
    (0 if none is chosen).
    """
    counts, gains, lowest = np.empty(len(drafts), np.int64), np.empty(len(seconds)), c_double()
    chosen: int = _native().das_trim(
        len(drafts),
        drafts.probs.shape[1],
        drafts.probs.ctypes.data,
        drafts.counts.ctypes.data,
        seconds.ctypes.data,
        len(seconds) - 1,
        fixed,
        counts.ctypes.data,
        gains.ctypes.data,
        byref(lowest),
    )
    if chosen < 0:
        raise MemoryError("no memory to sort the drafted tokens of a pass")
    return chosen, counts, gains, lowest.value


class Marginal(BudgetPolicy):
    """Verifies the drafted tokens that save more time than they cost.

    tokens    the most draft tokens a request gets in a pass
    ratio     see LatencyModel

    Raises ValueError for values out of range.
    """

    reads_probabilities = True

    def __init__(self, tokens: int = 32, ratio: float | None = None):
        _native()  # compile now, not in the first pass
        self.max_draft_tokens = drafted_tokens(tokens)
        self.prices = LatencyModel(ratio)
        self._now = 0.0  # seconds of all passes
        self._plain = 0  # passes without drafts
        self._controls, self._trials = Allowance(), Allowance()
        # A trial of this round, and of the one before: drafted tokens, predicted seconds, seconds of a plain pass.
        # Where passes are planned ahead, the pass of a trial comes a round later.
        self._running: deque[tuple[int, float, float] | None] = deque((None, None), maxlen=2)
        self._saves = 0.0  # seconds that the last drafts were expected to save
        self._lowest = 0.0  # the lowest gain that was verified in the last pass with drafts
        self._account = Account()  # of this rollout
        self._live, self._rested = 1, False  # live requests; whether the last call of `limits` let drafting rest
        self._unpaid = 0  # passes in a row whose drafts did not pay
        self._wait, self._next_wait = 0, FIRST_WAIT  # passes until the drafter is called again, this time and next time

    def begin_step(self, requests: int) -> None:
        self._unpaid, self._wait, self._next_wait = 0, 0, FIRST_WAIT
        self._account = Account()

    @property
    def rests(self) -> bool:
        return self._overdrawn or (self._wait > 0 and not self._trial_due)

    @property
    def _overdrawn(self) -> bool:
        """Whether drafting lost too much of this rollout at about as many live requests as there are now."""
        return self._account.overdrawn(self._live)

    @property
    def _trial_due(self) -> bool:
        return not self._overdrawn and self._plain >= FIRST_PLAIN and self._trials.due(self._now)

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        self._running.append(None)  # a trial that also computed prompts was not observed
        self._live = len(live) or self._live
        waits = self._rested = self.rests
        self._wait = max(0, self._wait - 1)
        control = self._plain < FIRST_PLAIN or (self._unpaid == 0 and self._saves < self._controls.seconds(self._now))
        return [0 if waits or control else self.max_draft_tokens] * len(live)

    def floors(self, live: Sequence[LiveRequest]) -> Sequence[float]:
        """Returns each request's floor: the gain below which a token hardly pays, even at the lowest average cost of a
        token.

        If extra tokens are free, the lowest gain that the last pass kept limits drafts instead.
        """
        floor = max(self.prices.cheapest(len(live)), min(FREE_FLOOR, self._lowest / 2))
        if self._trial_due:
            floor = min(floor, FREE_FLOOR)
        return [floor] * len(live)

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        seconds = self.prices.table(len(live), int(drafts.counts.sum()))
        chosen, counts, gains, self._lowest = best_tokens(drafts, seconds)
        each = float(seconds[chosen]) / float(len(live) + gains[chosen])
        self._saves = float(seconds[0]) - len(live) * each
        self._count_unpaid(chosen)
        most = min(len(seconds) - 1, self.prices.most(len(live)))
        if chosen > most:
            chosen, counts, _, _ = best_tokens(drafts, seconds, most)
        elif self._trial_due:
            trial = self._try_more(chosen, seconds[: most + 1], gains[: most + 1], each, len(live))
            if trial > chosen:
                chosen, counts, _, _ = best_tokens(drafts, seconds, trial)
        return counts.tolist()

    def _count_unpaid(self, chosen: int) -> None:
        """Count the passes in a row for which no drafted token was chosen. After many, call the drafter less often."""
        if chosen:
            self._unpaid, self._wait, self._next_wait = 0, 0, FIRST_WAIT
            return
        self._unpaid += 1
        if self._unpaid >= PATIENCE and not self._wait:
            self._wait, self._next_wait = self._next_wait, min(2 * self._next_wait, MAX_WAIT)

    def _try_more(self, chosen: int, seconds: Array, gains: Array, each: float, live: int) -> int:
        """Returns the number of tokens to verify: `chosen`, or many more in a trial, which shows their price.

        A trial of a few more tokens is affordable soon, shows little, and spends the time that a larger one needs.
        """
        least = min(len(seconds) - 1, ceil(LARGER * (live + chosen)) - live)
        if least > chosen and gains[-1] * each >= WORTH_TRYING * seconds[0]:
            costs = seconds - each * (live + gains)
            affordable = np.flatnonzero(costs[least:] <= self._trials.seconds(self._now))
            if len(affordable):
                size = least + int(affordable[-1])
                self._running[-1] = size, float(seconds[size]), float(seconds[0])
                return size
        self._trials.put_off(self._now, APART * float(seconds[0]))
        return chosen

    def observe_pass(self, done: TargetPass) -> None:
        self._now += done.seconds
        if not done.num_drafted:
            expected = self.prices.predict(done.live)
            self._plain += 1
            new = not abs(expected / done.seconds - 1) < AS_EXPECTED + 2 * self.prices.error
            self._controls.spent(self._now, new)
        elif found := [trial for trial in self._running if trial is not None and done.num_drafted >= trial[0]]:
            _, expected, plain = found[0]
            self._trials.spent(self._now, done.seconds < FOUND * expected, APART * plain)
            self._running.extend((None, None))
        self.prices.observe(done)
        self._settle(done)

    def _settle(self, done: TargetPass) -> None:
        """Note in the account what a pass saved."""
        self._live, plain, seconds = done.live, self.prices.predict(done.live), done.seconds
        saved = 0.0
        if done.num_drafted:
            seconds = min(seconds, SLOW * self.prices.predict(done.live, done.num_drafted))
            seconds += sum(took for _, took in done.draft_passes)
            saved = (done.live + done.num_accepted) / done.live * plain - seconds
        elif not self._rested:  # the drafter was called in vain
            saved = min(0.0, plain - seconds)
        self._account.note(done.live, saved, seconds, plain)

    def predict(self, live: int, num_drafted: int, context: int) -> float:
        return self.prices.predict(live, num_drafted)
