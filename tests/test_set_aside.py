"""Set-aside tokens: drafted as long as the request emits them, within the limits, and never after another token."""

from typing import Any

import numpy as np
import pytest

from das.budget import LiveRequest, make_budget
from das.draft_round import DraftRound
from das.drafter import HistoryDrafter
from das.drafter.texts import private_id
from das.set_aside import MOST_PARTS

OLD = list(range(100, 120))


def started(set_aside: Any, earlier: tuple[int, ...] = ()) -> tuple[DraftRound, LiveRequest]:
    """A round with one request, whose drafter knows no other text."""
    drafter = HistoryDrafter()
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
    draft_round.observe([request], [num_drafted], [len(tokens) - 1], [tokens], [])


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
    draft_round.observe([request, other], [0, 0], [0, 4], [OLD[:1], text[:5]], [])
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


def share(draft_round: DraftRound, problem: str) -> float:
    """The probability with which a new request's first set-aside token is drafted."""
    request = LiveRequest("new", problem, max_tokens=400, set_aside=OLD)
    draft_round.begin(request, [1, 2])
    emit(draft_round, request, OLD[:1], 0)
    proposal: Any = draft_round.propose([request])
    draft_round.end(request, keep=False)
    return float(proposal.drafts.probs[0, 0])


def answered(draft_round: DraftRound, problem: str, requests: int, right: int) -> None:
    """Requests of which so many set-aside tokens are right, and the next one is not."""
    for number in range(requests):
        request = LiveRequest(f"{number}", problem, max_tokens=400, set_aside=OLD)
        draft_round.begin(request, [1, 2])
        emit(draft_round, request, OLD[:1], 0)
        emit(draft_round, request, [*OLD[1 : 1 + right], 999], min(8, right + 1))
        draft_round.end(request, keep=False)


def test_a_client_does_not_take_the_drafts_of_others() -> None:
    """The first set-aside tokens of another's requests are right, and the rest are wrong."""
    draft_round, _ = started(OLD)
    evil, other = private_id("evil", "p"), private_id("other", "p")
    before = share(draft_round, other)
    answered(draft_round, evil, requests=400, right=0)
    assert share(draft_round, evil) < 0.3
    assert share(draft_round, other) == share(draft_round, "p") == before == 0.95


def test_what_was_learned_long_ago_is_forgotten() -> None:
    """After one large update of the policy nothing was accepted; later updates are small again."""
    draft_round, _ = started(OLD)
    answered(draft_round, "p", requests=400, right=0)
    low = share(draft_round, "p")
    answered(draft_round, "p", requests=100, right=8)
    assert low < 0.3
    assert share(draft_round, "p") > 0.9


def test_it_recovers_though_nobody_drafts() -> None:
    draft_round, _ = started(OLD)
    answered(draft_round, "p", requests=400, right=0)
    for number in range(500):
        draft_round.begin(request := LiveRequest(f"{number}", "p", max_tokens=400, limit=0, set_aside=OLD), [1, 2])
        draft_round.end(request, keep=False)
    assert share(draft_round, "p") > 0.9


def test_what_is_learned_of_clients_is_bounded() -> None:
    draft_round, _ = started(OLD)
    answered(draft_round, "p", requests=9, right=0)
    before = draft_round.set_aside.counts
    for number in range(3 * MOST_PARTS // 2):
        draft_round.begin(LiveRequest(f"{number}", private_id(str(number), "p"), max_tokens=9, set_aside=[5]), [1, 2])
    assert len(draft_round.set_aside._learned) == MOST_PARTS
    assert (draft_round.set_aside.counts == before).all()


def test_a_draft_that_goes_on_behind_the_end_was_not_rejected() -> None:
    draft_round, request = started(OLD)
    emit(draft_round, request, OLD[:1], 0)
    before = draft_round.set_aside.counts[1]
    request.stopped = True  # the second token ends the response
    draft_round.observe([request], [8], [1], [OLD[1:3]], [])
    assert draft_round.set_aside.counts[1] == before
