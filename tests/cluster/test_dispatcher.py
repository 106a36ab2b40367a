"""The dispatcher: random joins, deaths and deliveries lose nothing; who gets what is as documented."""

from collections import Counter

import numpy as np
import pytest

from das.cluster.dispatcher import Dispatcher, QueuedRequest


def requests_of(problems: int, group: int, seed: int = 0) -> list[QueuedRequest]:
    random = np.random.default_rng(seed)
    longest = random.permutation(problems) * 100.0 + 100
    return [
        QueuedRequest(p * group + g, f"p{p}", float(longest[p]) * (group - g) / group)
        for p in range(problems)
        for g in range(group)
    ]


def check_nothing_lost(dispatcher: Dispatcher, total: int, delivered: set[int]) -> None:
    """Each request is delivered, held by one engine, or waiting."""
    held = Counter(request for engine in dispatcher.live for request in dispatcher.held(engine))
    assert max(held.values(), default=1) == 1
    assert not set(held) & delivered
    assert len(held) + dispatcher.waiting + len(delivered) == total
    assert dispatcher.done == (len(delivered) == total)


@pytest.mark.parametrize("seed", range(300))
def test_random_histories_deliver_everything_once(seed: int) -> None:
    """Joins, deaths and deliveries, in any order, against a plain count."""
    random = np.random.default_rng(seed)
    requests = requests_of(int(random.integers(1, 12)), int(random.integers(1, 6)), seed)
    dispatcher = Dispatcher(requests, margin=int(random.integers(0, 3)))
    slots: dict[int, int] = {}
    delivered: set[int] = set()
    number = 0
    for action in random.choice(4, size=400, p=[0.06, 0.38, 0.5, 0.06]).tolist():
        live = dispatcher.live
        assert set(live) == set(slots)
        engine = int(random.choice(live)) if live else -1
        if action == 0 or not live:
            slots[number] = int(random.integers(1, 8))
            dispatcher.joined(number, slots[number])
            number += 1
        elif action == 1:
            before = set(dispatcher.held(engine))
            taken = dispatcher.take(engine)
            assert not set(taken) & (delivered | before)
            assert set(dispatcher.held(engine)) == before | set(taken)
            if taken:
                assert len(dispatcher.held(engine)) <= slots[engine] + dispatcher.margin
        elif action == 2 and dispatcher.held(engine):
            request = int(random.choice(dispatcher.held(engine)))
            dispatcher.finished(engine, request)
            delivered.add(request)
        elif action == 3:
            held = dispatcher.held(engine)
            assert dispatcher.lost(engine) == list(held)
            del slots[engine]
        check_nothing_lost(dispatcher, len(requests), delivered)
    dispatcher.joined(number, 3)
    while not dispatcher.done:  # somebody who asks always gets something, until all is delivered
        progress = False
        for engine in dispatcher.live:
            progress |= bool(dispatcher.take(engine))
            for request in dispatcher.held(engine):
                dispatcher.finished(engine, request)
                delivered.add(request)
                progress = True
        assert progress
        check_nothing_lost(dispatcher, len(requests), delivered)
    assert delivered == {request.index for request in requests}


def test_problems_are_dealt_whole_by_longest_sibling_to_the_least_work() -> None:
    predicted = {"a": 10, "b": 40, "c": 30, "d": 20}
    requests = [QueuedRequest(i, p, predicted[p] if i % 2 else 1) for i, p in enumerate("aabbccdd")]
    dispatcher = Dispatcher(requests, margin=0)
    for engine in (1, 0):
        dispatcher.joined(engine, 4)
    assert dispatcher.take(0) == [2, 3, 0, 1]  # b, then d would go to 1 (31 < 41), a to 0 (41 < 52)
    assert dispatcher.take(1) == [4, 5, 6, 7]


def test_at_most_an_even_share_or_the_slots_are_dealt() -> None:
    few = Dispatcher(requests_of(4, 2))
    for engine in range(4):
        few.joined(engine, 100)
    assert [len(few.take(engine)) for engine in range(4)] == [2, 2, 2, 2]
    uneven = Dispatcher([QueuedRequest(i, str(i), 100.0 if i == 0 else 1.0) for i in range(4)])
    for engine in range(2):
        uneven.joined(engine, 100)
    assert [uneven.take(engine) for engine in range(2)] == [[0, 3], [1, 2]]
    whole = Dispatcher(requests_of(5, 2), margin=0)  # 4 requests are kept for an engine though another one has 2
    for engine in range(3):
        whole.joined(engine, 100)
    assert sorted(len(whole.take(engine)) for engine in range(3)) == [2, 4, 4]
    many = Dispatcher(requests_of(16, 4), margin=2)
    for engine in range(2):
        many.joined(engine, 8)
    assert [len(many.take(engine)) for engine in range(2)] == [10, 10]
    assert many.waiting == 44


def test_lost_requests_come_first_and_are_shared_evenly() -> None:
    dispatcher = Dispatcher(requests_of(6, 4), margin=0)
    for engine in range(3):
        dispatcher.joined(engine, 100)
    taken = [dispatcher.take(engine) for engine in range(3)]
    assert [len(requests) for requests in taken] == [8, 8, 8]
    assert dispatcher.lost(1) == taken[1]
    assert dispatcher.take(0) == taken[1][:4]
    assert dispatcher.take(2) == taken[1][4:]

    queued = Dispatcher(requests_of(6, 4), margin=0)
    for engine in range(2):
        queued.joined(engine, 4)
    first = queued.take(0)
    queued.take(1)
    queued.lost(0)
    for request in queued.held(1):
        queued.finished(1, request)
    assert queued.take(1) == first


def test_no_requests_are_done_at_once() -> None:
    assert Dispatcher([]).done
