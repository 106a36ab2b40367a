"""How far the drafter's window moves when a rollout ends."""

import random

from das.engine.rollouts.rollout_record import TOKENS_PER_REQUEST, TOKENS_PER_TICK, HistoryClock


def test_the_clock_follows_what_callers_say() -> None:
    clock = HistoryClock(told=5)
    assert [clock.announced(tick) for tick in (5, 7, 8)] == [0, 2, 1]
    # Another trainer begins anew, and the clock goes on. Seen to fail (-5) when the last tick is always subtracted.
    assert [clock.announced(tick) for tick in (3, 4)] == [3, 1]


def test_unannounced_rollouts_add_up_whatever_their_sizes() -> None:
    # Seen to fail when the rest of a division is dropped, and when requests without tokens count nothing.
    generator, clock = random.Random(0), HistoryClock(told=0)
    rollouts = [(generator.randrange(5000), generator.randrange(3 * TOKENS_PER_TICK)) for _ in range(200)]
    passed = sum(clock.unannounced(requests, tokens) for requests, tokens in rollouts)
    total = sum(tokens + TOKENS_PER_REQUEST * requests for requests, tokens in rollouts)
    assert passed == total // TOKENS_PER_TICK
    assert clock.announced(4) == 4
