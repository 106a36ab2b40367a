"""Which drafts are asked for, and what they took. What is drafted: tests/experiments/simulate/test_model_on_text.py."""

import math

import numpy as np
import pytest

from das.drafter import HistoryDrafter
from das.models.hybrid import Drawn, Hybrid
from experiments.simulate.latency_forms import Drafting
from experiments.simulate.model_on_text import CopyOnText

PRICE = Drafting(2e-3, 1e-5, 0.0, 1e-4)
REQUESTS = ["a", "b"]


def at_work(model: CopyOnText) -> None:
    """The two requests stand in a text of 100 tokens, and have 10 tokens of context."""
    model.begin_text(np.arange(100, dtype=np.int32))
    model.stand_at(np.array([0, 50]), np.array([10, 10]))


def test_what_a_round_took_is_handed_out_once() -> None:
    """Rounds without drafts come in between, and their passes take no draft passes."""
    copy = CopyOnText((1.0,), PRICE)
    at_work(copy)
    hybrid, history = Hybrid(copy, 3, lambda: math.nan), HistoryDrafter()
    for name in REQUESTS:
        history.begin(name, "problem", [1, 2, 3])
    hybrid.extend(history, REQUESTS, [5, 5])
    assert [rows for rows, _ in hybrid.handed_out().passes] == [2, 2, 2]
    assert not hybrid.handed_out().passes


class Counted(CopyOnText):
    """A copy that counts its passes."""

    num_passes = 0

    def run(self, among: np.ndarray, tokens: object) -> Drawn:  # type: ignore[override]
        self.num_passes += 1
        return super().run(among, tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.95, 0.8])
def test_trials_of_a_model_that_does_not_pay_come_ever_later(share: float) -> None:
    """The history drafts well for one of two requests. So the model would pay if the history had nothing for any, which
    is looked at first, and does not pay for the other one alone.
    """
    model, worth = Counted((0.9,), PRICE), math.nan
    history = HistoryDrafter()
    for _ in range(30):  # so often that the history is sure
        history.begin("old", "known", [1, 2, 3])
        history.observe("old", np.arange(4, 60))
        history.end("old")
    hybrid = Hybrid(model, 1, lambda: worth)
    history.begin("a", "known", [1, 2, 3])
    history.begin("b", "unknown", [1, 2, 3])

    at_work(model)
    for _ in range(20):
        hybrid.extend(history, REQUESTS, [5, 5])
    assert model.num_passes == 20
    worth = share * hybrid.prices.predict(1) / hybrid._usual
    assert 2 * hybrid._usual * worth > 1.5 * hybrid.prices.predict(2)
    model.num_passes, rounds = 0, 3000
    for _ in range(rounds):
        hybrid.extend(history, REQUESTS, [5, 5])
    assert 0 < model.num_passes <= 30
