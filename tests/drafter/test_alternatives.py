"""Alternatives of history and head, against a slow reference that lists every draft."""

import numpy as np
import pytest
from made_drafts import batch

from das.drafter import Draft, Drafts
from das.drafter.alternatives import Alternatives, expected


def batch_of(drafts: list[Draft], width: int) -> Drafts:
    return batch([draft.probs for draft in drafts], [draft.tokens for draft in drafts], width)


def value(draft: Draft) -> float:
    return float(sum(np.prod(draft.probs[: end + 1]) for end in range(len(draft.probs))))


def random_draft(rng: np.random.Generator, most: int) -> Draft:
    count = int(rng.integers(0, most + 1))
    return Draft(rng.integers(0, 50, count).tolist(), rng.uniform(0.05, 1.0, count).tolist())


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_all_drafts_is_taken(seed: int) -> None:
    rng = np.random.default_rng(seed)
    limits = rng.integers(1, 9, size=5).tolist()
    floors = rng.choice([0.0, 0.1, 0.4], size=5).tolist()
    alone = [random_draft(rng, limit) for limit in limits]
    found = Alternatives(limits, floors, batch_of(alone, max(limits)))
    heads = [Draft([], []) for _ in limits]
    best = list(alone)
    behind = [value(draft) for draft in alone]
    is_open = [True] * 5
    for depth in range(4):
        usual = float(rng.uniform(0, 4))
        joint = [float(np.prod(head.probs)) for head in heads]
        is_open = [is_open[i] and limits[i] > depth and joint[i] >= floors[i] and usual > behind[i] for i in range(5)]
        among, gain = found.open(usual)
        assert among.tolist() == [i for i in range(5) if is_open[i]]
        assert gain == pytest.approx(sum(joint[i] * (usual - behind[i]) for i in among.tolist()))
        tokens, probs = rng.integers(0, 50, len(among)), rng.uniform(0.2, 1.0, len(among))
        if not len(among):
            break
        found.append(tokens, probs)
        for i, token, prob in zip(among.tolist(), tokens.tolist(), probs.tolist(), strict=True):
            heads[i] = Draft([*heads[i].tokens, token], [*heads[i].probs, prob])
            is_open[i] = float(np.prod(heads[i].probs)) >= floors[i]
        asked, given, room, relative = found.behind()
        assert asked.tolist() == [i for i in range(5) if is_open[i]]
        assert given == [heads[i].tokens for i in asked.tolist()]
        assert room == [limits[i] - depth - 1 for i in asked.tolist()]
        assert relative == pytest.approx([floors[i] / float(np.prod(heads[i].probs)) for i in asked.tolist()])
        assert found.last_tokens().tolist() == [heads[i].tokens[-1] for i in asked.tolist()]
        more = [random_draft(rng, most) for most in room]
        offered = found.offer(batch_of(more, max(room))) if len(asked) else []
        assert list(offered) == pytest.approx([value(draft) for draft in more])
        for i, draft in zip(asked.tolist(), more, strict=True):
            behind[i] = value(draft)
            whole = Draft(heads[i].tokens + draft.tokens, heads[i].probs + draft.probs)
            best[i] = max(best[i], whole, key=value)
    drafts = found.drafts()
    for row, draft in enumerate(best):
        assert drafts[row].tokens == draft.tokens
        assert drafts[row].probs == pytest.approx(draft.probs)


def test_what_is_behind_a_draft_does_not_count() -> None:
    assert expected(batch([[0.5], []], width=4)).tolist() == [0.5, 0.0]
