"""The budgets of the DAS paper: the acceptance curve, fitted to requests drawn from known curves; length classes; how
both plug into the library."""

from typing import Any

import numpy as np
import pytest

from das.budget import LiveRequest, make_budget
from experiments.paper_budgets import AcceptanceModel, Classes, ClosedForm, Curve, LengthClass
from experiments.settings.groups import made_budget

ASSUMED = Curve(k=0.9, alpha=0.9)


def accepted(curve: Curve, num_drafted: float, length: float) -> float:
    """How many of `num_drafted` tokens the curve expects to be accepted in a response of `length` tokens."""
    return curve.k * length * (1 - float(np.exp(-curve.alpha * num_drafted / length)))


def feed(model: AcceptanceModel, curve: Curve, count: int) -> None:
    """Observe responses of 50 to 500 tokens, with 0.05 to 8 drafted tokens for each; accepted tokens are binomial."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        length = int(rng.integers(50, 500))
        num_drafted = max(1, int(length * np.exp(rng.uniform(np.log(0.05), np.log(8)))))
        num_accepted = int(rng.binomial(length, accepted(curve, num_drafted, length) / length))
        model.observe("p", length, num_drafted, min(num_accepted, num_drafted))


def largest_error(fitted: Curve, truth: Curve) -> float:
    """The largest difference of the two curves, as a share of the length."""
    return max(abs(accepted(fitted, p, 1.0) - accepted(truth, p, 1.0)) for p in np.geomspace(0.05, 8, 50))


@pytest.mark.parametrize("truth", [Curve(0.6, 0.5), Curve(0.9, 1.0), Curve(0.15, 2.0), Curve(0.4, 0.1)])
def test_known_curves_are_found(truth: Curve) -> None:
    model = AcceptanceModel(ASSUMED, own_memory=1000)
    assert model.curve("p") == ASSUMED
    feed(model, truth, 300)
    fitted = model.curve("p")
    assert largest_error(fitted, truth) < 0.02
    if truth.alpha >= 0.5:  # up to 8 drafted tokens for each token say little about the limit of a slowly rising curve
        assert fitted.k == pytest.approx(truth.k, abs=0.03)
        assert fitted.alpha == pytest.approx(truth.alpha, rel=0.15)


def test_classes_follow_history_and_growth() -> None:
    budget = Classes(short=0, medium=4, long=16, medium_from=10, long_from=50)
    request = LiveRequest(name="0", problem="p", max_tokens=100)
    assert budget.limits([request]) == [4]  # Medium, because nothing is known
    request.generated = 60
    assert budget.limits([request]) == [16]  # Long already
    for length in (5, 6, 7):
        done = LiveRequest(name="x", problem="short", max_tokens=100, generated=length)
        budget.initial[done] = LengthClass.SHORT
        budget.end(done)
    budget.end_step()
    fresh = LiveRequest(name="y", problem="short", max_tokens=100)
    assert budget.limits([fresh]) == [0]
    fresh.generated = 8  # longer than all responses seen that started as Short
    assert budget.limits([fresh]) == [16]


def test_closed_form_gives_long_requests_more() -> None:
    budget = ClosedForm(tokens=16, ratio=64, k=0.8, alpha=0.8)
    for problem, length in (("long", 500), ("short", 20)):
        for i in range(200):
            done = LiveRequest(name="x", problem=problem, max_tokens=999, generated=length + i % 20)
            done.num_drafted, done.num_accepted = done.generated, done.generated // 2
            budget.end(done)
    requests = [LiveRequest(name=p, problem=p, max_tokens=999) for p in ("long", "short")]
    totals = np.sum([budget.limits(requests) for _ in range(50)], axis=0)
    assert totals[0] > 50 * max(1, totals[1])  # the short request finishes long before the long one


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "classes", "short": 0, "medium": 0, "long": 0, "medium_from": 1, "long_from": 2},
        {"name": "classes", "short": 0, "medium": 1, "long": 2, "medium_from": 9, "long_from": 2},
        {"name": "closed_form", "tokens": 4, "ratio": 9.0, "k": 1.2, "alpha": 1.0},
    ],
)
def test_impossible_settings_are_refused_in_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        make_budget(made_budget(settings))


def test_the_library_gets_them_by_module_and_class() -> None:
    over = made_budget({"name": "roofline_toggle", "over": {"name": "classes", "long": 9}})
    assert over["over"] == {"name": "experiments.paper_budgets:Classes", "long": 9}
    assert make_budget(over).max_draft_tokens == 9
