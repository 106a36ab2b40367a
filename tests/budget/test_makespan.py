"""The chance of finishing last, compared with drawing lengths and counting."""

import numpy as np
import pytest

from das.budget import LiveRequest
from das.budget.makespan import chances_of_being_last, speeds
from das.budget.remaining import RemainingLength


def test_chances_agree_with_drawing_lengths() -> None:
    rng = np.random.default_rng(0)
    lengths = RemainingLength(10_000)
    medians = {"a": 100, "b": 200, "c": 400}
    for problem, median in medians.items():
        for length in np.clip(rng.lognormal(np.log(median), 0.6, 3000), 1, 9999):
            lengths.observe(problem, int(length))
    live = [
        LiveRequest(name=f"{problem}{i}", problem=problem, max_tokens=1000, generated=generated, passes=passes)
        for i, (problem, generated, passes) in enumerate(
            [("a", 90, 30), ("a", 90, 30), ("b", 10, 10), ("b", 300, 60), ("c", 100, 50), ("c", 100, 20)]
        )
    ]
    speed = speeds(live)
    remaining = []
    for request in live:
        drawn_lengths = np.clip(rng.lognormal(np.log(medians[request.problem]), 0.6, 400_000), 1, 1000)
        possible = drawn_lengths[drawn_lengths > request.generated]
        remaining.append(rng.choice(possible, 100_000) - request.generated)
    last = np.bincount(np.argmax(np.array(remaining) / speed[:, None], axis=0), minlength=len(live)) / 100_000
    assert chances_of_being_last(lengths, live) == pytest.approx(last, abs=0.04)


def test_equal_requests_have_equal_chances_and_a_single_one_is_last() -> None:
    lengths = RemainingLength(1000)
    live = [LiveRequest(name=str(i), problem="p", max_tokens=500) for i in range(5)]
    assert chances_of_being_last(lengths, live) == pytest.approx(np.full(5, 0.2))
    assert chances_of_being_last(lengths, live[:1]).tolist() == [1.0]
