"""How far the drafter's window moves when a rollout ends."""

import random

from das.drafter import HistoryDrafter
from das.drafter.drafter import TOKENS_PER_REQUEST, TOKENS_PER_TICK


def test_unannounced_rollouts_add_up_whatever_their_sizes() -> None:
    # Seen to fail when the rest of a division is dropped, and when requests without tokens count nothing.
    generator, drafter = random.Random(0), HistoryDrafter()
    rollouts = [(generator.randrange(5000), generator.randrange(3 * TOKENS_PER_TICK)) for _ in range(200)]
    for requests, tokens in rollouts:
        drafter.end_unannounced(requests, tokens)
    total = sum(tokens + TOKENS_PER_REQUEST * requests for requests, tokens in rollouts)
    assert drafter.history_tick == total // TOKENS_PER_TICK
    drafter.end_rollout(4)
    assert drafter.history_tick == total // TOKENS_PER_TICK + 4


def test_the_oldest_tick_is_the_first_one_that_is_kept() -> None:
    drafter = HistoryDrafter(window=3)
    for tick in range(5):
        drafter.begin(str(tick), "p", [1])
        drafter.observe(str(tick), [2] * 10**tick)
        drafter.end(str(tick))
        drafter.end_rollout(tick + 1)
    kept = range(drafter.oldest_tick, drafter.history_tick + 1)
    assert drafter.history_tokens == sum(10**tick for tick in kept if tick < 5)
