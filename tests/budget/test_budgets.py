"""Budget policies: limits, trimming, length classes, and the latency model under them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from das.budget import LiveRequest, TargetPass, make_budget
from das.budget.classes import Classes
from das.budget.latency import LatencyModel
from das.budget.length import LengthClass, LengthModel
from das.budget.marginal import Marginal
from das.drafter import Drafts


def live(count: int) -> list[LiveRequest]:
    return [LiveRequest(name=str(i), problem="p", max_tokens=100) for i in range(count)]


def batch(probabilities: list[list[float]]) -> Drafts:
    """Drafts with these probabilities; what lies beyond a draft is garbage."""
    longest = max(map(len, probabilities))
    probs = np.full((len(probabilities), longest), 7.0)
    for row, own in zip(probs, probabilities, strict=True):
        row[: len(own)] = own
    counts = np.array([len(own) for own in probabilities], np.int64)
    return Drafts(np.ones(probs.shape, np.int32), probs, counts)


@given(
    st.lists(st.lists(st.floats(0.05, 1.0), max_size=4), min_size=1, max_size=4),
    st.floats(1.0, 200.0),
)
def test_marginal_finds_the_best_rate(probabilities: list[list[float]], ratio: float) -> None:
    """Against brute force over all ways to cut the drafts: no other cut emits more tokens per second."""
    budget = Marginal(tokens=8, ratio=ratio)
    drafts = batch(probabilities)
    kept = budget.trim(live(len(drafts)), drafts)
    reach = [np.cumprod(probs) for probs in probabilities]

    def rate(cut: tuple[int, ...]) -> float:
        emitted = len(drafts) + sum(float(r[:c].sum()) for r, c in zip(reach, cut, strict=True))
        return emitted / (ratio + len(drafts) + sum(cut))

    best = max(rate(cut) for cut in itertools.product(*(range(len(p) + 1) for p in probabilities)))
    assert rate(tuple(kept)) == pytest.approx(best, rel=1e-9)


def test_latency_model_learns_the_costs_and_ignores_interruptions() -> None:
    model = LatencyModel(ratio=10)
    assert model.form.base / model.form.token == pytest.approx(10)
    rng = np.random.default_rng(0)
    for i in range(600):
        live, drafted = int(rng.integers(1, 20)), int(rng.integers(0, 4)) * int(rng.integers(0, 60))
        seconds = 5e-3 + 2e-4 * live + ((1e-3 + 5e-5 * drafted) if drafted else 0.0)
        seconds *= rng.uniform(0.97, 1.03)
        model.observe(TargetPass(live, drafted, 0, 0, 20 * seconds if i > 50 and i % 10 == 0 else seconds))
    assert model.form.base == pytest.approx(5e-3, rel=0.1)
    assert model.form.row == pytest.approx(2e-4, rel=0.1)
    assert model.form.token == pytest.approx(5e-5, rel=0.1)
    assert model.form.drafting == pytest.approx(1e-3, rel=0.3)
    assert model.predict(10, 40, 0) == pytest.approx(10e-3, rel=0.05)
    assert 0.08 < model.error < 0.15  # the tenth that were interrupted are off by 0.95


def test_classes_follow_history_and_growth() -> None:
    budget = Classes(short=0, medium=4, long=16, medium_from=10, long_from=50)
    request = live(1)[0]
    assert budget.limits([request]) == [4]  # nothing known: Medium
    request.generated = 60
    assert budget.limits([request]) == [16]  # already Long
    for length in (5, 6, 7):
        done = LiveRequest(name="x", problem="short", max_tokens=100, generated=length, initial=LengthClass.SHORT)
        budget.end(done)
    budget.end_step()
    fresh = LiveRequest(name="y", problem="short", max_tokens=100)
    assert budget.limits([fresh]) == [0]
    fresh.generated = 8  # longer than all seen with this start
    assert budget.limits([fresh]) == [16]


def test_length_model_counts_what_is_still_possible() -> None:
    model = LengthModel(medium=10, long=100)
    for length in [5] * 6 + [20] * 3 + [200] * 2:
        model.observe("p", LengthClass.SHORT, length)
    model.refit()
    assert model.initial("p") is LengthClass.SHORT
    assert model.current(0, LengthClass.SHORT) is LengthClass.SHORT
    assert model.current(6, LengthClass.SHORT) is LengthClass.MEDIUM
    assert model.current(25, LengthClass.SHORT) is LengthClass.LONG


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "fixed", "tokens": 0},
        {"name": "marginal", "tokens": 4, "ratio": 0},
        {"name": "classes", "short": 0, "medium": 0, "long": 0, "medium_from": 1, "long_from": 2},
        {"name": "classes", "short": 0, "medium": 1, "long": 2, "medium_from": 9, "long_from": 2},
        {"name": "lavish"},
    ],
)
def test_impossible_settings_are_refused_in_one_line(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        make_budget(settings)


def test_tokens_after_a_stop_are_cut() -> None:
    request = LiveRequest(name="a", problem="p", max_tokens=9, stop_tokens=frozenset({3}))
    assert request.cut_at_stop([1, 2, 3, 4]) == [1, 2, 3]
    assert request.cut_at_stop([1, 2]) == [1, 2]
