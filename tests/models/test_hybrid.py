"""Which drafts a hybrid asks for, and what they took."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from das.drafter import HistoryDrafter
from das.models.hybrid import Drawn, Hybrid
from experiments.simulate.latency_forms import Drafting

PRICE = Drafting(2e-3, 1e-5, 0.0, 1e-4)
REQUESTS = ["a", "b"]


class Copy:
    """Stands in for a copy of the policy that is right with probability `rate` at each place of a text of 100 tokens.
    The two requests stand at its begin and middle, and have 10 tokens of context. Its passes take made-up time, and are
    counted."""

    def __init__(self, rate: float):
        self.rate, self.num_passes, self._now = rate, 0, 0.0
        self._right_at = np.random.default_rng([0, 0]).random(100) < rate

    def clock(self) -> float:
        return self._now

    def prepare(self, requests: Sequence[str]) -> float:
        return 0.0

    def observe(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        pass

    def begin(self, requests: Sequence[str]) -> None:
        self._at, self._right, self._first, self._now = np.zeros(2, np.int64), np.ones(2, bool), True, 0.0

    def run(self, among: np.ndarray, tokens: Sequence[Sequence[int]]) -> Drawn:
        self.num_passes += 1
        rows = sum(map(len, tokens)) + len(among) * self._first
        self._first = False
        for i, own in zip(among.tolist(), tokens, strict=True):
            start = int(50 * i + self._at[i])
            self._right[i] &= np.array_equal(np.arange(start, start + len(own)), own)
            self._at[i] += len(own)
        live, all_rows, context = (np.array(value, np.float64) for value in (len(among), rows, 10 * len(among)))
        self._now += float(PRICE.predict(live, all_rows, context))
        places = 50 * among + self._at[among]
        right = self._right[among] & self._right_at[places]
        return np.where(right, places, 1000), np.full(len(among), self.rate)


def test_what_a_round_took_is_handed_out_once() -> None:
    """Rounds without drafts come in between, and their passes take no draft passes."""
    copy = Copy(1.0)
    hybrid, history = Hybrid(copy, 3, lambda: math.nan), HistoryDrafter()
    for name in REQUESTS:
        history.begin(name, "problem", [1, 2, 3])
    hybrid.extend(history, REQUESTS, [5, 5])
    assert [rows for rows, _ in hybrid.handed_out().passes] == [2, 2, 2]
    assert not hybrid.handed_out().passes


@pytest.mark.parametrize("share", [0.95, 0.8])
def test_trials_of_a_model_that_does_not_pay_come_ever_later(share: float) -> None:
    """The history drafts well for one of two requests. So the model would pay if the history had nothing for any, which
    is looked at first, and does not pay for the other one alone.
    """
    model, worth = Copy(0.9), math.nan
    history = HistoryDrafter()
    for _ in range(30):  # so often that the history is sure
        history.begin("old", "known", [1, 2, 3])
        history.observe("old", np.arange(4, 60))
        history.end("old")
    hybrid = Hybrid(model, 1, lambda: worth)
    history.begin("a", "known", [1, 2, 3])
    history.begin("b", "unknown", [1, 2, 3])

    for _ in range(20):
        hybrid.extend(history, REQUESTS, [5, 5])
    assert model.num_passes == 20
    worth = share * hybrid.prices.predict(1) / hybrid._usual
    assert 2 * hybrid._usual * worth > 1.5 * hybrid.prices.predict(2)
    model.num_passes, rounds = 0, 3000
    for _ in range(rounds):
        hybrid.extend(history, REQUESTS, [5, 5])
    assert 0 < model.num_passes <= 30
