"""task=bench_budgets: prices of passes, ratios, refusals."""

import itertools

import numpy as np
import pytest
from omegaconf import OmegaConf

from experiments.bench.budgets.cost import cost_us
from experiments.bench.budgets.task import measure, pass_prices
from experiments.bench.budgets.workloads import Requests, requests_of
from experiments.run.errors import UserError

PRICES = np.array([3e-3, 1e-4, 1e-3, 5e-5])  # seconds per pass, request, pass that drafts, drafted token


def row(arm: str, counts: tuple[int, int, int, int], seconds: float) -> dict[str, object]:
    keys = ("decode_steps", "live_sum", "drafted_steps", "drafted")
    rest = {"arm": arm, "rollout_s": seconds, "tokens": 1000, "passes": counts[1], "accepted": 1000 - counts[1]}
    return {**dict(zip(keys, counts, strict=True)), **rest}


def test_prices_are_fitted_despite_noise_and_interruptions() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for i in range(80):
        steps = int(rng.integers(50, 400))
        counts = (steps, steps * int(rng.integers(1, 64)), int(steps * rng.random()), int(rng.integers(0, 20_000)))
        rows.append(row("a", counts, float(PRICES @ counts) * (3 if i % 10 == 0 else rng.uniform(0.98, 1.02))))
    assert pass_prices(rows) == pytest.approx(PRICES, rel=0.15)


def test_measure_compares_with_no_speculation() -> None:
    rows = []
    for slow in (1.0, 2.0, 1.5):  # a slow machine slows both arms
        rows.append(row("none", (200, 1000, 0, 0), slow * float(PRICES @ (200, 1000, 0, 0))))
        rows.append(row("das", (100, 500, 100, 900), slow * float(PRICES @ (100, 500, 100, 900))))
        rows.append(row("das", (50, 100, 10, 50), slow * float(PRICES @ (50, 100, 10, 50))))
    measured = measure([r for r in rows if r["drafted"] != 50], ["none", "das"], PRICES)
    want = float(PRICES @ (100, 500, 100, 900)) / float(PRICES @ (200, 1000, 0, 0))
    assert measured["das"]["ratio"] == pytest.approx(want)
    assert measured["das"]["quartiles"] == pytest.approx([want, want])
    assert measured["das"]["tokens_per_pass"] == 2.0
    assert measured["none"]["ratio"] == measured["none"]["computed"] == 1.0


def test_incomplete_groups_are_refused() -> None:
    config = OmegaConf.create({"trainer": {"num_generations": 8}, "task": {"problems": 8, "steps": 4, "tail": 0.5}})
    assert requests_of(config, 64, hopeless=False) == Requests(
        live=64, siblings=8, problems=8, hopeless=False, tail=0.5
    )
    assert requests_of(config, 16, hopeless=True) == Requests(live=16, siblings=1, problems=64, hopeless=True, tail=0.5)
    with pytest.raises(UserError, match="no multiple"):
        requests_of(config, 12, hopeless=False)


def test_a_tail_shortens_one_request_after_the_other() -> None:
    assert Requests(4, 1, 4, hopeless=False, tail=0.5).longest(100) == [100, 50, 25, 12]
    assert Requests(3, 1, 3, hopeless=False).longest(100) == [100, 100, 100]
    assert Requests(9, 1, 9, hopeless=False, tail=0.1).longest(100)[-1] == 1


def test_cost_counts_the_decisions_of_each_pass_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by a second at each reading, so a pass takes a second, whatever happens between passes."""
    readings = itertools.count()
    monkeypatch.setattr("experiments.bench.budgets.cost.time.thread_time", lambda: float(next(readings)))
    assert cost_us({"name": "marginal", "tokens": 32, "ratio": 64}, 64, passes=64, rounds=3) == 1e6
    assert next(readings) == 2 * 64 * 4  # a warm-up and three rounds
