"""Budget policies: limits, trimming."""

from typing import Any

import numpy as np
import pytest
from given_prices import GivenPrices
from made_drafts import batch

from das.budget import BudgetPolicy, LiveRequest, TargetPass, make_budget
from das.budget.marginal import Marginal, best_tokens


def live(count: int) -> list[LiveRequest]:
    return [LiveRequest(name=str(i), problem="p", max_tokens=100) for i in range(count)]


def test_marginal_switches_itself_off_and_tries_again() -> None:
    budget = Marginal(tokens=8, ratio=20)
    requests = live(4)
    hopeless, good = batch([[0.02] * 8] * 4), batch([[0.9] * 8] * 4)
    budget.begin_step(4)
    for _ in range(3):  # a new engine's first passes show what a plain pass takes
        assert not any(budget.limits(requests))
        budget.observe_pass(TargetPass(4, 0, 0, 100, 1e-3))
    drafting = []
    for _ in range(200):
        drafting.append(any(budget.limits(requests)))
        if drafting[-1]:
            assert budget.trim(requests, hopeless) == [0] * 4
        budget.observe_pass(TargetPass(4, 0, 0, 100, 1e-3))
    assert all(drafting[:8])
    assert 1 <= sum(drafting[8:]) <= 10  # after 8, 16, 32 ... passes, and for trials of prices as often
    while not any(budget.limits(requests)):
        budget.observe_pass(TargetPass(4, 0, 0, 100, 1e-3))
    assert all(budget.trim(requests, good))
    budget.observe_pass(TargetPass(4, 32, 25, 100, 1e-3))
    assert all(budget.limits(requests))


def test_drafts_must_pay_for_drafting_at_all() -> None:
    """Each token would pay for itself, but all of them together do not pay for the fixed cost of drafting."""
    budget = Marginal(tokens=8, ratio=20)
    for i in range(200):
        count = (4 + i % 9) * (i % 2)
        budget.observe_pass(TargetPass(4, count, 0, 0, 20e-3 + 4e-3 + (6e-3 + 1e-3 * count if count else 0)))
    seconds = budget.prices.table(4, 12)
    assert seconds[4] - seconds[0] == pytest.approx(10e-3, rel=0.1)
    assert seconds[12] - seconds[4] == pytest.approx(8e-3, rel=0.25)
    one, many = batch([[0.3]] * 4), batch([[0.99] * 8] * 4)
    assert best_tokens(one, seconds[:5])[0] == 0
    assert best_tokens(many, budget.prices.table(4, 32))[0] >= 16


def test_floors_prune_nothing_that_would_be_kept() -> None:
    """Drafts that end at the floors are trimmed to the same tokens as complete drafts, at prices that are a line."""
    rng = np.random.default_rng(0)
    budget = GivenPrices(16, base_s=30e-3, token_s=1e-3)
    for _ in range(50):
        requests = live(6)
        complete = [rng.uniform(0.2, 1.0, 16).tolist() for _ in requests]
        floors = budget.floors(requests)
        pruned = [
            draft[: int((np.cumprod(draft) >= floor).sum())] for draft, floor in zip(complete, floors, strict=True)
        ]
        assert sum(map(len, pruned)) < 0.8 * sum(map(len, complete))
        assert budget.trim(requests, batch(pruned)) == budget.trim(requests, batch(complete))


def test_tokens_that_cost_nothing_are_all_verified() -> None:
    """On a GPU at small batches passes show no cost of a token. The assumed cost must not come back then."""
    budget = Marginal(tokens=24, ratio=64)
    rng = np.random.default_rng(0)
    for i in range(600):
        count = int(rng.integers(1, 17))
        drafted = int(rng.integers(0, 400)) * (i % 4 > 0)
        budget.observe_pass(TargetPass(count, drafted, 0, 0, 5e-3 * rng.uniform(0.98, 1.02)))
    assert budget.predict(16, 300, 0) == pytest.approx(5e-3, rel=0.05)
    assert min(budget.trim(live(16), batch([[0.9] * 24] * 16))) > 16


def test_ladder_climbs_and_descends_between_steps() -> None:
    budget = make_budget({"name": "ladder", "rungs": [5, 7, 9], "up": 0.94, "down": 0.85, "patience": 2})

    def step(share: float) -> int:
        budget.observe_pass(TargetPass(10, 1000, round(1000 * share), 0, 1e-3))
        budget.end_step()
        return budget.limits(live(1))[0]

    assert [step(share) for share in (0.95, 0.95, 0.95, 0.9, 0.95, 0.95, 0.99, 0.99)] == [5, 7, 7, 7, 7, 9, 9, 9]
    assert [step(share) for share in (0.8, 0.86, 0.8, 0.8, 0.8, 0.8, 0.8)] == [9, 9, 9, 7, 7, 5, 5]
    budget.end_step()  # a step without drafts changes nothing
    assert budget.limits(live(1)) == [5]


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "fixed", "tokens": 0},
        {"name": "marginal", "tokens": 4, "ratio": 0},
        {"name": "lavish"},
        {"name": "ladder", "rungs": [5, 5], "up": 0.9, "down": 0.8, "patience": 2},
        {"name": "ladder", "rungs": [5, 7], "up": 0.8, "down": 0.9, "patience": 2},
        {"name": "roofline_toggle", "margin": -1, "ratio": 9, "over": {"name": "none"}},
        {"name": "roofline_toggle", "margin": 0, "ratio": 9, "over": {"name": "lavish"}},
    ],
)
def test_impossible_settings_are_refused_in_one_line(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        make_budget(settings)


def test_options_without_a_name_are_those_of_the_default_budget() -> None:
    budget = make_budget({"tokens": 5})
    assert isinstance(budget, Marginal)
    assert budget.max_draft_tokens == 5


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("fixed", "budget 'fixed': give a dictionary of its name and options"),
        ({"name": "fixed", "tokens": "many"}, "budget fixed: .* 'str'"),
        ({"name": "fixed", "depth": 3}, "budget fixed: .* 'depth'"),
    ],
)
def test_settings_of_another_type_name_their_budget(settings: Any, line: str) -> None:
    with pytest.raises(TypeError, match=line):
        make_budget(settings)


class Unfinished(BudgetPolicy):
    """Lacks limits."""

    max_draft_tokens = 4


def test_a_budget_that_is_not_whole_is_one_line_at_the_start() -> None:
    with pytest.raises(ValueError, match=r"budget.name=\S+: it needs limits and max_draft_tokens"):
        make_budget({"name": f"{__name__}:Unfinished"})
