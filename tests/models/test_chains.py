"""Chains that the history and a model draft in turn."""

import numpy as np
from made_drafts import batch

from das.drafter import Drafts
from das.models.hybrid import SURE, Chains


def drafts(*rows: tuple[list[int], list[float]]) -> Drafts:
    """Drafts of these tokens and probabilities."""
    return batch([probs for _, probs in rows], [tokens for tokens, _ in rows], width=4)


ALL = np.arange(3)
HISTORY = drafts(([1, 2, 3, 4], [0.99, 0.95, 0.5, 0.9]), ([5, 6], [0.3, 0.9]), ([], []))


def test_without_a_history_a_model_drafts_every_token() -> None:
    chains = Chains([2, 0, 3], None)
    among, gain = chains.open(0.9)
    assert among.tolist() == [0, 2]
    assert gain == 1.8
    chains.append(among, np.array([7, 8]), np.array([0.9, 0.5]))
    among, gain = chains.open(0.9)
    assert among.tolist() == [0, 2]
    assert np.isclose(gain, 0.9 * (0.9 + 0.5))
    made = chains.drafts()
    assert [made[row].tokens for row in range(3)] == [[7], [], [8]]


def test_only_sure_tokens_of_the_history_are_taken_at_once() -> None:
    chains = Chains([4, 4, 4], None)
    assert 0.99 * 0.95 > SURE > 0.99 * 0.95 * 0.5
    assert chains.take(ALL, HISTORY) == [[1, 2], [], []]
    assert chains.behind(ALL)[0] == [[1, 2], [], []]
    assert chains.behind(ALL)[1] == [2, 4, 4]


def test_a_model_that_is_not_asked_leaves_the_history_as_it_is() -> None:
    chains = Chains([4, 1, 4], None)
    chains.take(ALL, HISTORY)
    made = chains.drafts()
    assert [made[row].tokens for row in range(3)] == [[1, 2, 3, 4], [5], []]
    assert made[0].probs == [0.99, 0.95, 0.5, 0.9]


def test_they_take_turns() -> None:
    chains = Chains([4, 4, 4], None)
    chains.take(ALL, HISTORY)
    among, _ = chains.open(1.0)
    chains.append(among, np.array([9, 9, 9]), np.array([0.9, 0.9, 0.9]))
    tokens, room, _ = chains.behind(among)
    assert tokens == [[1, 2, 9], [9], [9]]
    assert room == [1, 3, 3]
    assert chains.take(among, drafts(([3, 4], [1.0, 1.0]), ([5], [0.95]), ([6], [0.2]))) == [[3], [5], []]
    made = chains.drafts()
    assert [made[row].tokens for row in range(3)] == [[1, 2, 9, 3], [9, 5], [9, 6]]
    assert made[1].probs == [0.9, 0.95]


def test_what_the_history_would_emit_anyway_is_no_gain() -> None:
    chains = Chains([2], None)
    chains.take(np.arange(1), drafts(([1, 2], [0.7, 1.0])))
    assert np.isclose(chains.open(0.9)[1], 0.2)
    assert chains.open(0.5)[1] == 0


def test_a_chain_ends_at_its_floor_and_limit() -> None:
    chains = Chains([2, 8], [0.0, 0.6])
    for _ in range(2):
        chains.append(chains.open(1.0)[0], np.array([1, 1]), np.array([0.7, 0.7]))
    assert chains.open(1.0)[0].tolist() == []  # one has its two tokens, the other fell below 0.6
    assert chains.drafts().counts.tolist() == [2, 2]
