"""The order in which requests start: longest predicted first, siblings together."""

from das.budget.lengths import LongestFirst


def test_unknown_problems_keep_their_order_and_siblings_stay_together() -> None:
    assert LongestFirst().order(["b", "a", "b", "a"]) == [0, 2, 1, 3]


def test_the_longest_start_first() -> None:
    schedule = LongestFirst()
    schedule.observe(["short"] * 8 + ["long"] * 8, [10] * 8 + [900] * 8)
    assert schedule.order(["short", "long", "short", "long"]) == [1, 3, 0, 2]
