"""Rows that verify a tree, and the counts of a replay in which drafts branch."""

import pytest

from das.drafter import TreeDraft
from experiments.recorded.tree_replay import TreeTally, rows_of_prefixes

#        -1
#     0      2        trunk 0, 1, 4; branches 2-5, 3 (leaves the trunk behind node 0), 6 (leaves a branch behind node 2)
#   1   3   5  6
#   4
PARENTS = [-1, 0, -1, 0, 1, 2, 2]
TREE = TreeDraft([10, 11, 20, 12, 13, 21, 22], PARENTS, [0.5] * 7, [0.5, 0.25, 0.25, 0.12, 0.12, 0.1, 0.1])


def test_rows_of_prefixes() -> None:
    """A branch repeats the last emitted token and the path before it."""
    assert rows_of_prefixes(PARENTS) == [1, 2, 4, 7, 8, 9, 12]
    assert rows_of_prefixes(list(range(-1, 9))) == list(range(1, 11))
    assert rows_of_prefixes([]) == []


@pytest.mark.parametrize(
    ("coming", "num_emitted"), [([10, 11, 13, 99], 4), ([20, 22, 5], 3), ([10, 22], 2), ([7], 1), ([20], 1)]
)
def test_the_accepted_path_is_walked(coming: list[int], num_emitted: int) -> None:
    tally = TreeTally()
    assert tally.count(0, TREE, coming) == num_emitted
    assert (tally.num_drafted, tally.num_rows) == (7, 12)


def test_calibration_counts_the_children_of_accepted_nodes() -> None:
    tally = TreeTally()
    tally.count(0, TREE, [20, 22, 5])
    assert tally.bins.sum(axis=0).tolist() == [4, 2.0, 2]  # two children of the root, two of node 2


def test_a_tree_is_cut_before_it_needs_more_rows() -> None:
    tally = TreeTally(max_rows=8)
    assert tally.count(0, TREE, [20, 22, 5]) == 2
    assert (tally.num_drafted, tally.num_rows) == (5, 8)
    assert tally.summary()["rows_per_pass"] == 8
