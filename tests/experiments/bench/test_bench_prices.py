"""task=bench_prices: curves, recorded drafts, and the task at its smallest."""

import json
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from das.budget import make_budget
from das.budget.marginal import Marginal
from experiments.bench.prices import task as bench_prices
from experiments.bench.prices.curves import HARD_KNEE, KINDS, Curve, make_curve
from experiments.bench.prices.rollouts import Clock, KnownPrices, Recorded, roll_out
from experiments.run.errors import CONFIGS, UserError


def test_curves_never_fall_and_seeds_make_all_kinds() -> None:
    for seed in range(100):
        live = 2 ** (seed % 7)
        curve = make_curve(seed, live)
        assert curve == make_curve(seed, live)
        for now in (0.0, 1.0, 100.0):
            seconds = curve.seconds(live, np.arange(500), now)
            assert seconds.min() > 0
            assert np.diff(seconds).min() >= 0
    assert {make_curve(seed, 8).kind for seed in range(len(KINDS))} == set(KINDS)


def test_a_curve_is_the_sum_of_its_parts() -> None:
    curve = Curve("x", 10e-3, row=1e-3, drafting=5e-3, token=1e-4, knee=20, beyond=1e-3, step=16, rise=2e-3)
    plain, drafted = curve.seconds(8, np.array([0, 24]), 0.0)
    assert plain == pytest.approx(10e-3 + 8e-3 + 8e-4 + 2e-3)
    assert drafted == pytest.approx(10e-3 + 8e-3 + 32e-4 + 5e-3 + 12e-3 + 4e-3)
    assert HARD_KNEE.seconds(32, np.array([0, 1, 10]), 0.0) == pytest.approx([10e-3, 11e-3, 20e-3])


def test_drift_slows_passes_and_moves_the_knee() -> None:
    curve = Curve("x", 10e-3, knee=64, beyond=1e-3, drift_s=10, slower=2.0, moved=0.5)
    assert curve.seconds(32, np.array([32]), 0.0) == pytest.approx([10e-3])
    assert curve.seconds(32, np.array([32]), 10.0) == pytest.approx([2 * (10e-3 + 32e-3)])


def test_noise_is_about_one_and_interruptions_are_long() -> None:
    rng = np.random.default_rng(0)
    noisy = Curve("x", 1.0, noise=0.1, interrupted=0.05)
    measured = np.array([noisy.measured(1.0, rng) for _ in range(4000)])
    assert np.median(measured) == pytest.approx(1.0, rel=0.02)
    assert (measured > 2).mean() == pytest.approx(0.05, abs=0.015)


@pytest.fixture(scope="module")
def texts() -> list[Recorded]:
    return bench_prices.text(0.0, 300)


def test_recorded_drafts_are_verified_as_the_engine_does(texts: list[Recorded]) -> None:
    """Fixed drafts emit what was recorded, in fewer passes than tokens."""
    clock = Clock(Curve("line", 10e-3, token=1e-4, noise=0.0), 0)
    engine = roll_out([each.part(0, 200) for each in texts[:8]], clock, make_budget({"name": "fixed", "tokens": 8}))
    assert engine.timeline.arrays()["emitted"].sum() == 8 * 200
    assert 0.2 < engine.num_accepted / engine.num_drafted < 1
    assert len(clock.passes) < 150
    assert clock.seconds == pytest.approx(engine.now)


def test_marginal_loses_little_at_a_hard_knee(texts: list[Recorded]) -> None:
    """10 ms to 32 tokens, 1 ms a token beyond, 32 live: a draft never pays. 300 passes of none take 3 s."""
    seconds = []
    for budget in (make_budget({"name": "none"}), Marginal()):
        clock = Clock(HARD_KNEE, 0)
        roll_out(texts[:32], clock, budget)
        seconds.append(clock.seconds)
    assert seconds[0] == pytest.approx(3.0, rel=0.01)
    assert seconds[1] < 1.03 * seconds[0]


def test_the_oracle_knows_the_curve(texts: list[Recorded]) -> None:
    """With stairs of 64 tokens it fills steps, from the first pass on."""
    clock, oracle = Clock(Curve("stairs", 1e-3, step=64, rise=9e-3), 0), Marginal()
    oracle.prices = KnownPrices(clock)
    roll_out(texts[:32], clock, oracle)
    tokens = np.array([tokens for tokens, _ in clock.passes])
    assert tokens[1] > 32
    assert np.mean((tokens % 64 == 0) | (tokens < 64)) > 0.9


def run(folder: Path, *more: str) -> dict:
    small = ["task.curves=6", "task.live=[4]", "task.tokens=60", "task.replaced=[0]"]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        bench_prices.run(compose("config", overrides=["task=bench_prices", *small, *more]), [], str(folder))
    result: dict = json.loads((folder / "result.json").read_text())
    return result


def test_the_result_has_every_kind(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result["curves"] == len(result["rows"]) == 6
    assert set(result["kinds"]) == set(KINDS)
    assert result["worst"] == max(row["ratio"] for row in result["rows"])
    assert (tmp_path / "prices.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("override", "said"),
    [("task.live=[]", "task.live"), ("task.replaced=[2]", "shares from 0 to 1"), ("task.curves=0", "task.curves=0")],
)
def test_bad_input_is_one_line(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(UserError, match=said.replace("[", r"\[")):
        run(tmp_path, override)
