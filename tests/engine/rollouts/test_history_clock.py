"""How far the drafter's window moves when a rollout ends."""

import random

from das.engine.rollouts.history_clock import TOKENS_PER_REQUEST, TOKENS_PER_TICK, HistoryClock


def test_unannounced_rollouts_add_up_whatever_their_sizes() -> None:
    # Seen to fail when the rest of a division is dropped, and when requests without tokens count nothing.
    generator, clock = random.Random(0), HistoryClock(told=0)
    rollouts = [(generator.randrange(5000), generator.randrange(3 * TOKENS_PER_TICK)) for _ in range(200)]
    passed = sum(clock.unannounced(requests, tokens) for requests, tokens in rollouts)
    total = sum(tokens + TOKENS_PER_REQUEST * requests for requests, tokens in rollouts)
    assert passed == total // TOKENS_PER_TICK
    assert clock.announced(4) == 4
