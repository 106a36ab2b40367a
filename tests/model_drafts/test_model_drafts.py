"""Which drafts are asked for, and what they took. What is drafted: tests/replay/test_model_on_text.py."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from das.budget.latency_forms import Drafting
from das.drafter import HistoryDrafter
from das.model_drafts.drafter import Drawn
from das.model_drafts.either_or import EitherOr
from das.model_drafts.in_turns import InTurns
from experiments.replay.model_on_text import CopyOnText, HeadOnText

PRICE = Drafting(2e-3, 1e-5, 0.0, 1e-4)
REQUESTS = ["a", "b"]


def at_work(model: CopyOnText | HeadOnText) -> None:
    """The two requests stand in a text of 100 tokens, and have 10 tokens of context."""
    model.begin_text(np.arange(100, dtype=np.int32))
    model.stand_at(np.array([0, 50]), np.array([10, 10]))


def read_all(head: HeadOnText) -> None:
    """The head reads both contexts, and another token follows each."""
    head.read(np.array([0, 1]))
    head.stand_at(np.array([0, 50]), np.array([11, 11]))


def begun(drafter: InTurns | EitherOr) -> None:
    for name in REQUESTS:
        drafter.begin(name, "problem", [1, 2, 3])


def test_what_a_round_took_is_handed_out_once() -> None:
    """Rounds without drafts come in between, and their passes take no draft passes."""
    copy = CopyOnText((1.0,), PRICE)
    at_work(copy)
    drafter = InTurns(copy, 3, lambda: math.nan, HistoryDrafter())
    begun(drafter)
    drafter.propose_batch(REQUESTS, [5, 5])
    assert [rows for rows, _ in drafter.handed_out().passes] == [2, 2, 2]
    assert not drafter.handed_out().passes


class CountedHead(HeadOnText):
    """A head that counts how often what it has not read is counted."""

    num_asked = 0

    def num_unread(self, requests: list[str], among: np.ndarray) -> int:  # type: ignore[override]
        self.num_asked += 1
        return super().num_unread(requests, among)


def test_a_head_that_cannot_pay_is_declined_before_anything_is_counted() -> None:
    """Its least price, that of a token of each request, is more than tokens are worth."""
    head, worth = CountedHead((0.9,), PRICE), math.nan
    drafter = EitherOr(head, 3, lambda: worth, HistoryDrafter())
    begun(drafter)
    at_work(head)
    drafter.propose_batch(REQUESTS, [5, 5])
    assert len(drafter.handed_out().passes) == 3
    asked, worth = head.num_asked, 1e-6
    at_work(head)
    drafter.propose_batch(REQUESTS, [5, 5])
    assert not drafter.handed_out().passes
    assert head.num_asked == asked


class UpToDate(HeadOnText):
    """A head that has read all but the last token of each request. It counts its passes."""

    num_passes = 0

    def num_unread(self, requests: Sequence[str], among: np.ndarray) -> int:
        super().num_unread(requests, among)
        return len(among)

    def read(self, among: np.ndarray) -> Drawn:
        self.num_passes += 1
        return super().read(among)


@pytest.mark.parametrize("share", [0.95, 0.8])
def test_trials_of_a_head_that_does_not_pay_come_ever_later(share: float) -> None:
    """The history drafts well for one of two requests. So the head would pay if the history had nothing for any, which
    is looked at first, and does not pay for the other one alone.
    """
    head, worth = UpToDate((0.9,), PRICE), math.nan
    history = HistoryDrafter()
    history.begin("old", "known", [1, 2, 3])
    history.observe("old", np.arange(4, 60))
    history.end("old")
    drafter = EitherOr(head, 1, lambda: worth, history)
    drafter.begin("a", "known", [1, 2, 3])
    drafter.begin("b", "unknown", [1, 2, 3])

    at_work(head)
    for _ in range(20):
        drafter.propose_batch(REQUESTS, [5, 5])
    assert head.num_passes == 20
    worth = share * drafter.price.seconds(1) / drafter._usual
    assert 2 * drafter._usual * worth > 1.5 * drafter.price.seconds(2)
    head.num_passes, rounds = 0, 3000
    for _ in range(rounds):
        drafter.propose_batch(REQUESTS, [5, 5])
    assert 0 < head.num_passes <= 30


def test_a_head_drafts_fewer_tokens_where_all_of_them_would_not_pay() -> None:
    head, worth = CountedHead((0.5,), PRICE), math.nan
    drafter = EitherOr(head, 3, lambda: worth, HistoryDrafter())
    begun(drafter)
    for _ in range(200):
        at_work(head)
        drafter.propose_batch(REQUESTS, [5, 5])
    drafter.handed_out()
    usual, price = drafter._usual, drafter.price
    assert usual < 0.55
    worth = 1.2 * price.seconds(2) / (2 * usual)  # one pass pays, the third one's token comes too seldom
    at_work(head)
    read_all(head)
    drafter.propose_batch(REQUESTS, [5, 5])
    assert len(drafter.handed_out().passes) == 1


def test_a_head_with_much_to_read_is_declined() -> None:
    """It would pay for a token of each request, and not for all of their contexts."""
    head, worth = CountedHead((0.9,), PRICE), math.nan
    drafter = EitherOr(head, 1, lambda: worth, HistoryDrafter())
    begun(drafter)
    at_work(head)
    for _ in range(2):
        drafter.propose_batch(REQUESTS, [5, 5])
    price = drafter.price
    assert price.row > 0
    drafter.handed_out()
    at_work(head)  # another rollout: it has read nothing
    worth = (price.seconds(2) + price.seconds(20)) / 2 / (2 * 0.9)
    drafter.propose_batch(REQUESTS, [5, 5])
    assert not drafter.handed_out().passes
    head.stand_at(np.array([0, 50]), np.array([10, 10]))
    read_all(head)
    drafter.propose_batch(REQUESTS, [5, 5])
    assert len(drafter.handed_out().passes) == 1


def rollout(drafter: EitherOr, head: HeadOnText, passes: int = 20) -> bool:
    """A rollout in which all that the head drafts is right. Whether the head drafted anything."""
    asked = 0
    begun(drafter)
    for i in range(passes):
        at_work(head)
        drafter.propose_batch(REQUESTS, [5, 5])
        asked += len(drafter.handed_out().passes)
        new = 1000 + passes * drafter.history_tick + i  # no token comes twice, so the history has nothing
        drafter.observe_batch(REQUESTS, [[new], [new]])
    for name in REQUESTS:
        drafter.end(name)
    drafter.end_step(drafter.history_tick + 1)
    return asked > 0


class Resting(HeadOnText):
    """A head that knows whether it rests."""

    rests = False

    def rest(self, resting: bool) -> None:
        self.rests = resting


def test_a_head_that_saves_nothing_rests() -> None:
    head, worth = Resting((0.9,), PRICE), 1e-6
    drafter = EitherOr(head, 3, lambda: worth, HistoryDrafter())
    rested = []
    for _ in range(40):
        rollout(drafter, head)
        rested.append(head.rests)
    # Awake in the first, and behind 1, 2, 4, 8 and 8 rollouts of rest.
    assert [i for i, rests in enumerate([False, *rested[:-1]]) if not rests] == [0, 2, 5, 10, 19, 28, 37]
    saved = drafter.state()
    worth = 1.0
    while head.rests:
        assert not rollout(drafter, head)
    assert all(rollout(drafter, head) for _ in range(10))
    again = Resting((0.9,), PRICE)
    resumed = EitherOr(again, 3, lambda: worth, HistoryDrafter())
    resumed.restore(saved)
    assert again.rests
    assert resumed.is_resting


def test_a_head_does_not_rest_while_nobody_knows_what_it_saves() -> None:
    head = Resting((0.9,), PRICE)
    drafter = EitherOr(head, 3, lambda: math.nan, HistoryDrafter())
    assert all(rollout(drafter, head) for _ in range(5))


def test_a_rest_ends_though_requests_go_on() -> None:
    """A server's requests overlap the rollouts that are counted there."""
    head = Resting((0.9,), PRICE)
    drafter = EitherOr(head, 3, lambda: 1e-6, HistoryDrafter())
    begun(drafter)
    rested = []
    for tick in range(1, 6):
        at_work(head)
        drafter.propose_batch(REQUESTS, [5, 5])
        drafter.observe_batch(REQUESTS, [[1], [1]])
        drafter.end_step(tick)
        rested.append(head.rests)
    assert rested == [True, False, True, True, False]


class Partial(HeadOnText):
    """A head that knows too little of the second request."""

    def able(self, requests: Sequence[str]) -> np.ndarray:  # type: ignore[override]
        return np.arange(len(requests)) != 1


def test_a_head_drafts_only_where_it_can() -> None:
    head = Partial((1.0,), PRICE)
    drafter = EitherOr(head, 3, lambda: math.nan, HistoryDrafter())
    begun(drafter)
    at_work(head)
    counts = drafter.propose_batch(REQUESTS, [5, 5]).counts
    assert counts[0] >= 3
    assert counts[1] == 0
