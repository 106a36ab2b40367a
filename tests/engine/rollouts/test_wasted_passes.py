"""Passes behind a response's end, which an asynchronous scheduler plans, do not count as the response's."""

import pytest

from das.engine.rollouts.report import RequestCost
from das.engine.rollouts.rollout import without_wasted


@pytest.mark.parametrize(
    ("passes", "emitted", "tokens", "kept"),
    [
        (5, None, 5, (5, None)),
        (6, None, 5, (5, None)),  # no drafts: a token a pass
        (1, None, 0, (1, None)),  # a prompt that has no room for a token
        (3, [4, 1, 3], 8, (3, [4, 1, 3])),
        (3, [4, 1, 3], 6, (3, [4, 1, 3])),  # the end lies inside the last pass
        (4, [4, 1, 3, 1], 8, (3, [4, 1, 3])),
        (4, [4, 1, 3, 2], 7, (3, [4, 1, 3])),
        (2, [4, 1], 2, (1, [4])),
    ],
)
def test_only_passes_of_the_response_count(
    passes: int, emitted: list[int] | None, tokens: int, kept: tuple[int, list[int] | None]
) -> None:
    cost = without_wasted(RequestCost(passes, drafted=3, emitted=emitted), tokens)
    assert (cost.passes, cost.emitted) == kept
    assert cost.drafted == 3
