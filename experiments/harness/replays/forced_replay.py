"""Simulate the rollouts of task=force, to measure the simulator's error and to predict times if rows of a pass cost
less.

A row of a pass is a request or a drafted token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from das.engine.build import EngineSettings
from experiments.harness.replays.recorded_arms import simulated_arm
from experiments.harness.replays.timed import BASELINE, Timed
from experiments.simulate.arms import simulate
from experiments.simulate.fitted_times import fit_form, fit_prefill
from experiments.simulate.latency_forms import Drafting
from experiments.simulate.times import Times
from experiments.simulate.workload import Workload

# Times of a row, relative to the measured time. 0: a pass takes as long with any number of rows, as on a GPU with few.
ROW_PRICES = (1.0, 0.5, 0.25, 0.0)
Results = Mapping[str, dict[tuple[int, int], Timed]]  # by arm, then by (live, epoch)
Works = Mapping[int, Sequence[Workload]]  # live requests -> the responses of each epoch


def fitted_times(results: Results, works: Works, arms: Sequence[str]) -> tuple[Drafting, float]:
    """Fit the time of a pass to the odd epochs of `arms`. Returns the form, and the seconds for each prompt token."""
    timelines = [each.timeline for arm in arms for (_, epoch), each in results[arm].items() if epoch % 2]
    form = fit_form(timelines, "drafting")
    assert isinstance(form, Drafting)
    return form, fit_prefill(timelines, form, next(iter(works.values()))[0].prompt)


def replayed(settings: EngineSettings, times: Times, works: Works) -> dict[tuple[int, int], float]:
    """Simulate an arm's rollouts, with a separate history for each number of live requests.

    Returns (live, epoch) -> seconds of the rollout.
    """
    seconds: dict[tuple[int, int], float] = {}
    for live, epochs in works.items():
        longest = max(int(work.lengths.max()) for work in epochs)
        steps = simulate(simulated_arm(settings), epochs, times, live, longest).steps
        seconds |= {(live, epoch): step.rollout_s for epoch, step in enumerate(steps, 1)}
    return seconds


def replay(results: Results, works: Works, settings: Mapping[str, EngineSettings]) -> dict[str, Any]:
    """Compute `replay_error` and `ratio_at_row_price` of every arm that can be simulated.

    replay_error: arm -> simulated / measured time of the even epochs, minus 1.
    ratio_at_row_price: price -> arm -> simulated time / that of the arm none, overall and by live requests, if each row
    takes `price` times its measured time. The time of a pass without rows, and that of drafting, stay as measured.
    """
    arms = [arm for arm in results if settings[arm].row.simulated]
    form, prefill = fitted_times(results, works, arms)
    errors, at_price = {}, {}
    for price in ROW_PRICES:
        times = Times(replace(form, row=form.row * price, token=form.token * price), prefill=prefill * price)
        seconds = {arm: replayed(settings[arm], times, works) for arm in arms}
        if price == 1.0:
            errors = {arm: _error(seconds[arm], results[arm]) for arm in arms}
        at_price[f"{price:g}"] = {
            arm: {
                "overall": sum(seconds[arm].values()) / sum(seconds[BASELINE].values()),
                "by_live": {str(live): _at(seconds[arm], live) / _at(seconds[BASELINE], live) for live in works},
            }
            for arm in arms
            if arm != BASELINE
        }
    return {"replay_error": errors, "ratio_at_row_price": at_price}


def _error(seconds: Mapping[tuple[int, int], float], measured: Mapping[tuple[int, int], Timed]) -> float:
    even = [key for key in measured if key[1] % 2 == 0]
    return sum(seconds[key] for key in even) / sum(float(measured[key].row["rollout_s"]) for key in even) - 1


def _at(seconds: Mapping[tuple[int, int], float], live: int) -> float:
    return sum(value for (requests, _), value in seconds.items() if requests == live)
