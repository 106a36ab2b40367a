"""Set-aside tokens: drafted as long as the request emits them, within the limits, and never after another token."""

from typing import Any

import numpy as np
import pytest

from das.budget import LiveRequest, make_budget
from das.draft_round import DraftRound
from das.drafter import HistoryDrafter

OLD = list(range(100, 120))


def started(set_aside: Any, earlier: tuple[int, ...] = ()) -> tuple[DraftRound, LiveRequest]:
    """A round with one request, whose drafter knows no text."""
    drafter = HistoryDrafter(scope="problem")
    drafter.vocab = 1000
    draft_round = DraftRound(drafter, make_budget({"name": "fixed", "tokens": 8}))
    request = LiveRequest("a", "p", max_tokens=400, set_aside=set_aside)
    draft_round.begin(request, [1, 2], earlier)
    return draft_round, request


def drafted(draft_round: DraftRound, *requests: LiveRequest) -> list[list[int]]:
    proposal = draft_round.propose(requests)
    assert proposal is not None
    return [proposal.drafts[row].tokens[:count] for row, count in enumerate(proposal.counts)]


def emit(draft_round: DraftRound, request: LiveRequest, tokens: list[int], num_drafted: int) -> None:
    draft_round.observe([request], [num_drafted], [len(tokens) - 1], [tokens], None)


def test_drafted_until_another_token_is_emitted() -> None:
    draft_round, request = started(OLD)
    emit(draft_round, request, OLD[:1], 0)
    assert drafted(draft_round, request) == [OLD[1:9]]
    emit(draft_round, request, OLD[1:10], 8)
    assert drafted(draft_round, request) == [OLD[10:18]]
    emit(draft_round, request, [*OLD[10:13], 999], 8)
    assert drafted(draft_round, request) == [[]]


def test_drafted_to_its_end() -> None:
    draft_round, request = started(OLD[:3])
    emit(draft_round, request, OLD[:2], 0)
    assert drafted(draft_round, request) == [OLD[2:3]]
    emit(draft_round, request, [OLD[2], 7], 1)
    assert drafted(draft_round, request) == [[]]


def test_only_the_first_token_differs() -> None:
    draft_round, request = started(OLD)
    emit(draft_round, request, [5], 0)
    assert drafted(draft_round, request) == [[]]


@pytest.mark.parametrize(("earlier", "wanted"), [(OLD[:4], OLD[5:13]), ([1, 2, 3, 4], [])])
def test_a_request_that_decoded_elsewhere(earlier: list[int], wanted: list[int]) -> None:
    draft_round, request = started(OLD, tuple(earlier))
    emit(draft_round, request, OLD[4:5], 0)
    assert drafted(draft_round, request) == [wanted]


def test_ids_that_no_policy_knows_are_never_drafted() -> None:
    draft_round, request = started([*OLD[:4], 1000, *OLD[5:]])
    emit(draft_round, request, OLD[:1], 0)
    assert drafted(draft_round, request) == [OLD[1:4]]


def test_others_draft_from_the_history_beside_it() -> None:
    draft_round, request = started(OLD)
    other = LiveRequest("b", "p", max_tokens=400)
    draft_round.begin(other, [1, 2])
    text = list(range(30, 60))
    draft_round.begin(past := LiveRequest("c", "p", max_tokens=400), [1, 2])
    emit(draft_round, past, text, 0)
    draft_round.observe([request, other], [0, 0], [0, 4], [OLD[:1], text[:5]], None)
    own, beside = drafted(draft_round, request, other)
    assert own == OLD[1:9]
    assert beside
    assert beside == text[5 : 5 + len(beside)]


def test_probabilities_are_learned() -> None:
    draft_round, request = started(OLD * 50)
    emit(draft_round, request, OLD[:1], 0)
    first: Any = draft_round.propose([request])
    emit(draft_round, request, OLD[1:10], 8)
    better: Any = draft_round.propose([request])
    emit(draft_round, request, [*OLD[10:12], 999], 8)
    again = LiveRequest("d", "p", max_tokens=400, set_aside=OLD)
    draft_round.begin(again, [1, 2])
    emit(draft_round, again, OLD[:1], 0)
    worse: Any = draft_round.propose([again])
    assert 0.9 < first.drafts.probs[0, 0] < better.drafts.probs[0, 0] < 1
    assert worse.drafts.probs[0, 0] < better.drafts.probs[0, 0]
    assert np.ptp(first.drafts.probs[0, :8]) == 0
