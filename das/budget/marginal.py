"""Marginal budget: a drafted token is verified if it saves more of the rollout's time than it costs.

A pass takes base + sum_i (row + token d_i) seconds (das.budget.latency), of which request i answers for

    c_i(d) = w_i base + row + token d        w_i = P(i is the last to finish), 1 / live while others wait for slots

because a pass less for i shortens the rollout by w_i base and by i's own rows. Its draft is cut where c_i(d) over the
tokens it is expected to emit, 1 + sum of P(its first j tokens are all accepted), is least. Where the batch's drafts
together save less than drafting costs (`drafting` of the latency model), none is verified; if that lasts, none is
looked for, but for a try now and then.
"""

from collections.abc import Sequence
from ctypes import CDLL, POINTER, byref, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np

from das.budget.latency import LatencyModel
from das.budget.makespan import chances_of_being_last
from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass
from das.budget.remaining import RemainingLength
from das.drafter import Drafts
from das.native import load_native

LONGEST_RESPONSE = 2**18  # tokens: lengths are learned up to here
PATIENCE = 8  # passes in a row that drafts did not pay for, until none are looked for
RETRY = 16, 512  # passes until the first and, doubled each time, the rarest try


@cache
def _trim() -> CDLL:
    library = load_native(Path(__file__).with_name("trim.c"))
    library.das_trim.restype = c_double
    library.das_trim.argtypes = [c_int64, c_int64, *[c_void_p] * 3, *[c_double] * 3, c_void_p, POINTER(c_double)]
    return library


class Marginal(BudgetPolicy):
    """tokens: the most a request is given. ratio, latency: LatencyModel's `ratio` and `measured`. makespan: False
    weighs all requests alike."""

    def __init__(self, tokens: int = 32, ratio: float = 64.0, makespan: bool = False, latency: str | None = None):
        if tokens < 1:
            raise ValueError(f"budget.tokens must be at least 1, got {tokens}; for no drafts use budget=none")
        _trim()  # compiled now, not in the first pass
        self.max_draft_tokens = tokens
        self.makespan = makespan
        self.latency = LatencyModel(ratio, latency)
        self.lengths = RemainingLength(LONGEST_RESPONSE)
        self._waiting = 0
        self._live: list[LiveRequest] = []  # of the last estimate of
        self._share = np.empty(0)  # their weights
        self._weighed = 0  # passes since
        self._idle = 0  # passes in a row that drafts did not pay for
        self._retry = RETRY[0]  # idle passes at which to try again

    def begin_step(self, requests: int) -> None:
        self._waiting = requests
        self._live = []
        self._idle, self._retry = 0, RETRY[0]

    def begin(self, request: LiveRequest) -> None:
        self._waiting -= 1

    @property
    def drafting(self) -> bool:
        """Whether drafts are looked for in this pass."""
        return self._idle < PATIENCE or self._idle == self._retry

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        if not self.drafting:
            self._idle += 1
            return [0] * len(live)
        return [self.max_draft_tokens] * len(live)

    def floors(self, live: Sequence[LiveRequest]) -> Sequence[float]:
        """What a first token must promise; later ones must promise as much or more."""
        form = self.latency.form
        floors: list[float] = (form.token / (form.row + self._shares(live) * form.base)).tolist()
        return floors

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        form = self.latency.form
        share = self._shares(live)
        kept = np.empty(len(drafts), np.int64)
        expected = c_double()
        saved = _trim().das_trim(
            len(drafts),
            drafts.probs.shape[1],
            drafts.probs.ctypes.data,
            drafts.counts.ctypes.data,
            share.ctypes.data,
            form.base,
            form.row,
            form.token,
            kept.ctypes.data,
            byref(expected),
        )
        if saved <= form.drafting:
            if self._idle == self._retry:
                self._retry = min(2 * self._retry, self._idle + RETRY[1])
            self._idle += 1
            return [0] * len(drafts)
        self._idle, self._retry = 0, RETRY[0]
        return kept.tolist()

    def _shares(self, live: Sequence[LiveRequest]) -> np.ndarray:
        """Of the pass's fixed time, by request; sums to 1."""
        if not self.makespan or self._waiting > 0:
            return np.full(len(live), 1 / len(live))
        if not self._live or self._weighed >= max(8, len(live)):  # an estimate costs as much as requests
            self._live, self._weighed = list(live), 0
            self._share = chances_of_being_last(self.lengths, live)
        elif self._live != live:  # some have finished; one that is new counts as the average
            known = {request.name: weight for request, weight in zip(self._live, self._share.tolist(), strict=True)}
            self._live = list(live)
            self._share = np.array([known.get(request.name, 1 / len(live)) for request in live])
            self._share /= self._share.sum()
        return self._share

    def observe_pass(self, done: TargetPass) -> None:
        self.latency.observe(done)
        self._weighed += 1

    def predict(self, live: int, drafted: int, context: int) -> float:
        return self.latency.predict(live, drafted, context)

    def end(self, request: LiveRequest) -> None:
        self.lengths.observe(request.problem, request.generated)
