"""Marginal budget: a drafted token is verified if it saves more of the rollout's time than it costs.

A pass takes base + sum_i (row + token d_i) seconds (das.budget.latency). Of these seconds, request i is charged

    c_i(d) = w_i base + row + token d

Its weight w_i is P(i is the last to finish), or 1 / live while requests wait for slots. The reason: one pass less for i
shortens the rollout by w_i base, and saves i's own rows. Its draft is cut where c_i(d) over the expected number of
emitted tokens, 1 + sum_j P(its first j tokens are all accepted), is smallest. If the drafts
of a batch together save less time than drafting costs (`drafting` of the latency model), none of them is verified. If
that happens many times in a row, drafting pauses, and is tried again now and then.
"""

from collections.abc import Sequence
from ctypes import CDLL, POINTER, byref, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np

from das.budget.latency import LatencyModel
from das.budget.makespan import chances_of_being_last
from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass
from das.budget.remaining import MAX_RESPONSE, RemainingLength
from das.drafter import Drafts
from das.native import load_native

PATIENCE = 8  # passes in a row whose drafts did not pay, before drafting pauses
FIRST_RETRY = 16  # passes without paying drafts before the first retry; the number doubles with each retry
MAX_RETRY = 512  # most passes between two retries


@cache
def _trim() -> CDLL:
    library = load_native(Path(__file__).with_name("trim.c"))
    library.das_trim.restype = c_double
    library.das_trim.argtypes = [c_int64, c_int64, *[c_void_p] * 3, *[c_double] * 3, c_void_p, POINTER(c_double)]
    return library


class Marginal(BudgetPolicy):
    """Verifies the drafted tokens that save more time than they cost.

    tokens    the most draft tokens a request gets in a pass
    ratio     `ratio` of LatencyModel
    makespan  True: w_i is the chance to be the last to finish. False: w_i is 1 / live
    latency   `measured` of LatencyModel

    Raises ValueError for values out of range.
    """

    def __init__(self, tokens: int = 32, ratio: float = 64.0, makespan: bool = False, latency: str | None = None):
        if tokens < 1:
            raise ValueError(f"budget.tokens must be at least 1, got {tokens}; for no drafts use budget=none")
        _trim()  # compile now, not in the first pass
        self.max_draft_tokens = tokens
        self.makespan = makespan
        self.latency = LatencyModel(ratio, latency)
        self.lengths = RemainingLength(MAX_RESPONSE)
        self._num_waiting = 0  # requests of the rollout without a slot
        self._live: list[LiveRequest] = []  # the requests of the last estimate of weights
        self._weights = np.empty(0)  # w_i of these requests
        self._weights_age = 0  # passes since that estimate
        self._idle = 0  # passes in a row whose drafts did not pay
        self._retry = FIRST_RETRY  # idle passes at which drafting is tried again

    def begin_step(self, requests: int) -> None:
        self._num_waiting = requests
        self._live = []
        self._idle, self._retry = 0, FIRST_RETRY

    def begin(self, request: LiveRequest) -> None:
        self._num_waiting -= 1

    @property
    def drafting(self) -> bool:
        """Whether the drafter is asked in this pass."""
        return self._idle < PATIENCE or self._idle == self._retry

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        if not self.drafting:
            self._idle += 1
            return [0] * len(live)
        return [self.max_draft_tokens] * len(live)

    def floors(self, live: Sequence[LiveRequest]) -> Sequence[float]:
        """The probability from which a first token pays. Later tokens must reach at least as high a probability."""
        form = self.latency.form
        floors: list[float] = (form.token / (form.row + self._request_weights(live) * form.base)).tolist()
        return floors

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        form = self.latency.form
        weights = self._request_weights(live)
        counts = np.empty(len(drafts), np.int64)
        expected = c_double()
        saved_seconds = _trim().das_trim(
            len(drafts),
            drafts.probs.shape[1],
            drafts.probs.ctypes.data,
            drafts.counts.ctypes.data,
            weights.ctypes.data,
            form.base,
            form.row,
            form.token,
            counts.ctypes.data,
            byref(expected),
        )
        if saved_seconds <= form.drafting:
            if self._idle == self._retry:
                self._retry = min(2 * self._retry, self._idle + MAX_RETRY)
            self._idle += 1
            return [0] * len(drafts)
        self._idle, self._retry = 0, FIRST_RETRY
        return counts.tolist()

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
        self.latency.observe(done)
        self._weights_age += 1

    def predict(self, live: int, num_drafted: int, context: int) -> float:
        return self.latency.predict(live, num_drafted, context)

    def end(self, request: LiveRequest) -> None:
        self.lengths.observe(request.problem, request.generated)
