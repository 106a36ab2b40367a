"""Chains that a model drafts behind what the history drafts."""

import numpy as np

from das.drafter import Drafts
from das.engine.drafters.hybrid import SURE, Chains

HISTORY = Drafts(
    np.array([[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0]], np.int32),
    np.array([[0.99, 0.95, 0.5, 0.9], [0.3, 0.9, 0.7, 0.7], [0.9, 0.9, 0.9, 0.9]]),  # behind counts: undefined
    np.array([4, 2, 0], np.int64),
)


def test_without_a_history_every_chain_begins_empty() -> None:
    chains = Chains([2, 0, 3], None, None)
    assert chains.prefixes() == [[], [], []]
    among, gain = chains.open(0.9)
    assert among.tolist() == [0, 2]
    assert gain == 1.8
    chains.append(among, np.array([7, 8]), np.array([0.9, 0.5]))
    among, gain = chains.open(0.9)
    assert among.tolist() == [0, 2]
    assert np.isclose(gain, 0.9 * (0.9 + 0.5))
    drafts = chains.drafts()
    assert drafts.counts.tolist() == [1, 0, 1]
    assert drafts.tokens[[0, 2], 0].tolist() == [7, 8]


def test_only_sure_tokens_of_the_history_stay_in_front() -> None:
    chains = Chains([4, 4, 4], None, HISTORY)
    assert 0.99 * 0.95 > SURE > 0.99 * 0.95 * 0.5
    assert chains.prefixes() == [[1, 2], [], []]


def test_a_chain_ends_at_its_floor_and_limit() -> None:
    chains = Chains([2, 8], [0.0, 0.6], None)
    for _ in range(2):
        chains.append(chains.open(1.0)[0], np.array([1, 1]), np.array([0.7, 0.7]))
    assert chains.open(1.0)[0].tolist() == []  # one has its two tokens, the other fell below 0.6
    assert chains.drafts().counts.tolist() == [2, 2]


def test_what_the_history_would_emit_anyway_is_no_gain() -> None:
    sure = Drafts(np.array([[1, 2]], np.int32), np.array([[0.7, 1.0]]), np.array([2], np.int64))
    chains = Chains([2], None, sure)
    assert chains.prefixes() == [[]]
    assert np.isclose(chains.open(0.9)[1], 0.2)


def test_the_better_of_chain_and_history_is_taken() -> None:
    chains = Chains([4, 4, 4], None, HISTORY)
    among, _ = chains.open(1.0)
    chains.append(among, np.array([9, 9, 9]), np.array([0.2, 0.9, 0.9]))
    drafts = chains.drafts()
    assert drafts[0].tokens == [1, 2, 3, 4]  # the model is less sure than the history
    assert drafts[1].tokens == [9]
    assert drafts[2].tokens == [9]


def test_a_broken_model_leaves_the_history() -> None:
    chains = Chains([4, 4, 4], None, HISTORY)
    chains.append(chains.open(1.0)[0], np.array([9, 9, 9]), np.array([0.9, 0.9, 0.9]))
    chains.drop()
    drafts = chains.drafts()
    assert [drafts[row].tokens for row in range(3)] == [[1, 2, 3, 4], [5, 6], []]
