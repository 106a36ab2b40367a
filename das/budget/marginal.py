"""Marginal budget."""

from collections.abc import Sequence
from ctypes import CDLL, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np

from das.budget.makespan import chances_of_being_last
from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass
from das.budget.prices import PassPrices
from das.budget.remaining import MAX_RESPONSE, RemainingLength
from das.drafter import Drafts
from das.native import load_native

PATIENCE = 8
FIRST_RETRY = 8
MAX_RETRY = 512
FIRST_PLAIN = 3
FEW = 4
GROWTH = 1.5
TRIAL_SHARE = 0.01
CONTROL_SHARE = 0.01
K = 0.0


@cache
def _trim() -> CDLL:
    library = load_native(Path(__file__).with_name("trim.c"))
    library.das_trim.restype = c_int64
    library.das_trim.argtypes = [c_int64, c_int64, *[c_void_p] * 4, c_int64, c_double, c_double, *[c_void_p] * 3]
    return library


class Marginal(BudgetPolicy):
    def __init__(self, tokens: int = 32, ratio: float = 64.0, makespan: bool = False, latency: str | None = None):
        _trim()
        self.max_draft_tokens = tokens
        self.makespan = makespan
        self.prices = PassPrices(ratio, latency)
        self.lengths = RemainingLength(MAX_RESPONSE)
        self._num_waiting = 0
        self._live: list[LiveRequest] = []
        self._weights = np.empty(0)
        self._weights_age = 0
        self._unpaid, self._wait, self._retry = 0, 0, FIRST_RETRY
        self._next_trial = 0.0
        self._context = 0
        self._elapsed = 0.0
        self._last_plain = self._last_trial = 0.0
        self._fails = 0
        self._trial = None
        self._since_trial = 0
        self._speed = 1.0  # tokens emitted for a request, of chosen drafts
        self._result = np.zeros(3)
        self.log = []

    def begin_step(self, requests: int) -> None:
        self._num_waiting = requests
        self._live = []
        self._unpaid, self._wait, self._retry = 0, 0, FIRST_RETRY

    def begin(self, request: LiveRequest) -> None:
        self._num_waiting -= 1

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        if self._control_due(len(live)):
            return [0] * len(live)
        if self._wait > 0 and self._elapsed < self._next_trial:
            self._wait -= 1
            return [0] * len(live)
        return [self.max_draft_tokens] * len(live)

    def _control_due(self, live):
        if not self.prices.learns:
            return False
        if self.prices.plain_seen < FIRST_PLAIN:
            return True
        plain = self.prices.table(live, self._context, 0)[0]
        return plain * (1 - 1 / self._speed) < CONTROL_SHARE * (self._elapsed - self._last_plain)

    def floors(self, live: Sequence[LiveRequest]):
        return None

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        n = len(live)
        weights = self._request_weights(live) * n
        total = int(drafts.counts.sum())
        cap = total if not self.prices.learns else self.prices.most(n)
        seconds = self.prices.table(n, self._context, total)
        gains = np.empty(total + 1)
        counts = np.empty(n, np.int64)
        best = wanted = self._choose(drafts, weights, seconds, total, counts, gains)
        rate = seconds[best] / (n + gains[best])
        if best > cap:
            best = self._take(drafts, weights, cap, counts, gains)
        self._speed += 0.1 * (seconds[0] / (n * rate) - self._speed)
        self._trial = None
        most = min(cap, total)
        if self.prices.learns and most > best and self._elapsed >= self._next_trial and gains[most] * rate > 0.05 * seconds[0]:
            regret = seconds[: most + 1] - rate * (n + gains[: most + 1])
            affordable = np.flatnonzero(regret[best + 1 :] <= TRIAL_SHARE * (self._elapsed - self._last_trial))
            if len(affordable):
                best = self._take(drafts, weights, best + 1 + int(affordable[-1]), counts, gains)
                self._trial = seconds[best]
                self._last_trial = self._elapsed
                self._next_trial = self._elapsed + seconds[0] * 8 * 2 ** self._fails
        if wanted:
            self._unpaid, self._wait, self._retry = 0, 0, FIRST_RETRY
        else:
            self._unpaid += 1
            if self._unpaid >= PATIENCE:
                self._wait = self._retry
                self._retry = min(2 * self._retry, MAX_RETRY)
        return counts.tolist() if best else [0] * n

    def _take(self, drafts, weights, size, counts, gains):
        """The `size` best tokens."""
        seconds = np.ones(size + 1)
        seconds[size] = 1e-9
        return self._choose(drafts, weights, seconds, size, counts, gains)

    def _choose(self, drafts, weights, seconds, most, counts, gains):
        return _trim().das_trim(
            len(drafts), drafts.probs.shape[1], drafts.probs.ctypes.data, drafts.counts.ctypes.data,
            weights.ctypes.data, seconds.ctypes.data, most, 0.0, 0.0, counts.ctypes.data, gains.ctypes.data, self._result.ctypes.data,
        )

    def _request_weights(self, live: Sequence[LiveRequest]) -> np.ndarray:
        """w_i, the share of the pass's fixed time that each request is charged with [R]; sums to 1."""
        if not self.makespan or self._num_waiting > 0:
            return np.full(len(live), 1 / len(live))
        if not self._live or self._weights_age >= max(8, len(live)):  # the cost of an estimate grows with the requests
            self._live, self._weights_age = list(live), 0
            self._weights = chances_of_being_last(self.lengths, live)
        elif self._live != live:  # some have finished; a new one gets the average
            weight_of = {
                request.name: weight for request, weight in zip(self._live, self._weights.tolist(), strict=True)
            }
            self._live = list(live)
            self._weights = np.array([weight_of.get(request.name, 1 / len(live)) for request in live])
            self._weights /= self._weights.sum()
        return self._weights

    def observe_pass(self, done: TargetPass) -> None:
        self._elapsed += done.seconds
        self._context = done.context
        if not done.num_drafted: self._last_plain = self._elapsed
        if self._trial is not None:
            self._fails = 0 if done.seconds < 0.95 * self._trial else min(self._fails + 1, 6)
            self._trial = None
        self.prices.observe(done)
        self._weights_age += 1

    def predict(self, live: int, num_drafted: int, context: int) -> float:
        return self.prices.predict(live, num_drafted, context)

    def end(self, request: LiveRequest) -> None:
        self.lengths.observe(request.problem, request.generated)
