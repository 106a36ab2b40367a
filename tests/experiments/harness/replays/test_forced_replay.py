"""The replay of forced rollouts, on timelines whose prices are known."""

from typing import Any

import numpy as np
import pytest

from das.engine.build import EngineSettings
from experiments.harness.replays.forced_replay import fitted_times, replay, replayed
from experiments.harness.replays.timed import Timed
from experiments.simulate.latency_forms import Drafting
from experiments.simulate.times import Times
from experiments.simulate.workload import Workload, workload

FORM = Drafting(base=0.01, row=0.002, drafting=0.001, token=0.001)
SETTINGS: dict[str, Any] = {
    "none": EngineSettings("", "none"),
    "das": EngineSettings("", "das", budget={"name": "fixed", "tokens": 4}),
    "ngram": EngineSettings("", "ngram"),
}


def works() -> dict[int, list[Workload]]:
    """Two epochs of a problem whose responses are the same text, so that drafts are accepted."""
    text = np.random.default_rng(0).integers(0, 1000, 200)
    epochs = [workload(["a"] * 4, [text[: 100 + 20 * i] for i in range(4)], prompt=5) for _ in range(2)]
    return {4: epochs, 1: epochs}


def measured(arm: str, form: Drafting) -> dict[tuple[int, int], Timed]:
    """What an engine with the prices of `form` would have answered."""
    rng = np.random.default_rng(1)
    live = rng.integers(1, 5, 400)
    tokens = live + (0 if arm == "none" else rng.integers(0, 9, 400))
    passes = form.predict(live, tokens, np.zeros(400))
    timeline = {"step_time_s": np.cumsum(passes).tolist(), "step_live": live.tolist(), "step_tokens": tokens.tolist()}
    seconds = replayed(SETTINGS[arm], Times(form), works())
    return {key: Timed({"rollout_s": value}, timeline, True) for key, value in seconds.items()}


def test_known_prices_are_found_and_replayed() -> None:
    results = {arm: measured(arm, FORM) for arm in ("none", "das")}
    results["ngram"] = results["none"]
    form, prefill = fitted_times(results, works(), ["none", "das"])
    assert (form.base, form.row, form.drafting, form.token) == pytest.approx((0.01, 0.002, 0.001, 0.001), abs=1e-5)
    assert prefill < 0.1 * FORM.row
    errors = replay(results, works(), SETTINGS)["replay_error"]
    assert errors == pytest.approx({"none": 0.0, "das": 0.0}, abs=0.01), "vLLM's drafters are not replayed"
    results["das"] = {
        key: Timed({"rollout_s": 2 * each.row["rollout_s"]}, each.timeline, True)
        for key, each in results["das"].items()
    }
    assert replay(results, works(), SETTINGS)["replay_error"]["das"] == pytest.approx(-0.5, abs=0.01)


def test_cheaper_rows_make_drafts_pay_more() -> None:
    result = replay({arm: measured(arm, FORM) for arm in ("none", "das")}, works(), SETTINGS)["ratio_at_row_price"]
    assert list(result) == ["1", "0.5", "0.25", "0"]
    assert all(list(arms) == ["das"] and arms["das"]["by_live"].keys() == {"4", "1"} for arms in result.values())
    overall = [arms["das"]["overall"] for arms in result.values()]
    assert overall == sorted(overall, reverse=True)
    assert overall[-1] < overall[0] - 0.02
    free = replay({arm: measured(arm, Drafting(0.01, 0.0, 0.0, 0.0)) for arm in ("none", "das")}, works(), SETTINGS)
    at_measured, at_zero = (free["ratio_at_row_price"][price]["das"]["overall"] for price in ("1", "0"))
    assert at_measured == pytest.approx(at_zero, rel=1e-2), "rows that cost nothing cannot become cheaper"
