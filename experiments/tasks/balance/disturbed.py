"""Many engines of which some die, come back, join late or are slow, under the cluster's Dispatcher; lengths alone."""

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from omegaconf import DictConfig

from das.budget.latency_forms import Array, Form
from das.budget.remaining import RemainingLength
from das.cluster.dispatcher import Dispatcher
from das.replay.cluster import predicted_lengths
from das.replay.dispatched import Change, simulate_dispatched
from das.replay.engine import PlainEngine
from das.replay.times import Times
from das.replay.workload import Workload
from experiments.run.progress import Progress
from experiments.tasks.balance.placements import MAX_TOKENS, lengths_only, requests_of


@dataclass(frozen=True)
class Slower:
    """A latency form of a device that takes `factor` times as long."""

    form: Form
    factor: float

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.factor * self.form.predict(live, tokens, context)


@dataclass(frozen=True)
class Trouble:
    """What happens in a rollout: numbers of engines.

    deaths: at random times in the first 80 % of the undisturbed rollout. again: each dead one is replaced after
    task.restart_s. joins: new ones at random times of the first half. slow: they take task.slow_factor times as long.
    given_up: the slow ones leave after half of the undisturbed time, when others begin to idle, and what they have
    starts again.
    """

    deaths: int = 0
    again: bool = False
    joins: int = 0
    slow: int = 0
    given_up: bool = False


def disturbed(
    task: DictConfig, recorded: Workload, times: Times, progress: Progress
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of each trouble, and the rows of engines.jsonl of the last one, which has all of them.

    over_undisturbed: rollout time over that without trouble. lost: requests that started again. over_bound: over the
    larger of two times that no placement beats: the bound without trouble, and the last moment at which a lost request
    can end, alone on another engine from the death on.
    """
    number, some = int(task.disturbed_engines), int(task.disturbed)
    works = lengths_only(recorded, int(task.disturbed_batch), int(task.group), 1, int(task.epochs), seed=1)
    learned = RemainingLength(MAX_TOKENS)
    for earlier in works[:-1]:
        for problem, length in zip(earlier.problems, earlier.lengths.tolist(), strict=True):
            learned.observe(problem, length)
    work = works[-1]
    requests = requests_of(work, predicted_lengths(learned, work.problems))
    troubles = {
        "none": Trouble(),
        "deaths": Trouble(deaths=some),
        "deaths, replaced": Trouble(deaths=some, again=True),
        "joins": Trouble(joins=some),
        "slow engines": Trouble(slow=some),
        "slow, given up": Trouble(slow=some, given_up=True),
        "all, given up": Trouble(deaths=some, again=True, joins=some, slow=some, given_up=True),
    }
    lengths = work.lengths.tolist()
    rows: list[dict[str, Any]] = []
    done, undisturbed_s, bound = None, 0.0, 0.0  # the first rollout is undisturbed
    for name, trouble in troubles.items():
        began = time.process_time()
        engines, changes = _with_trouble(task, trouble, number, times, undisturbed_s)
        done = simulate_dispatched(work, engines, Dispatcher(requests, int(task.margin)), 1, changes)
        if not rows:
            undisturbed_s, bound = done.step.rollout_s, done.step.bound
        again = [time_s + float(times.plain(1, work.prompt, lengths[i]).sum()) for time_s, i in done.lost]
        rows.append(
            {
                "trouble": name,
                "engines": number,
                "requests": len(work),
                "rollout_s": done.step.rollout_s,
                "over_undisturbed": done.step.rollout_s / undisturbed_s,
                "over_bound": done.step.rollout_s / max([bound, *again]),
                "lost": len(done.lost),
                "processor_s": time.process_time() - began,
            }
        )
        progress.note(
            "{engines} engines, {requests} requests, trouble: {trouble:<17s} {rollout_s:6.1f} s  over undisturbed "
            "{over_undisturbed:.3f}  over bound {over_bound:.3f}  started again {lost}  "
            "(simulated in {processor_s:.1f} s)".format(**rows[-1])
        )
    assert done is not None
    return rows, done.events


def _with_trouble(
    task: DictConfig, trouble: Trouble, number: int, times: Times, undisturbed_s: float
) -> tuple[list[PlainEngine], list[Change]]:
    """Engines, those that come later included, and what happens to them. Different engines die and are slow."""
    random = np.random.default_rng(0)
    slow_times = replace(times, form=Slower(times.form, float(task.slow_factor)))
    chosen = random.permutation(number).tolist()
    slow, dying = set(chosen[: trouble.slow]), chosen[trouble.slow :][: trouble.deaths]
    changes = [Change(float(random.uniform(0, 0.8)) * undisturbed_s, engine, "died") for engine in dying]
    arrivals = [change.time_s + float(task.restart_s) for change in changes if trouble.again]
    arrivals += (random.uniform(0, 0.5, trouble.joins) * undisturbed_s).tolist()
    changes += [Change(time_s, number + i, "joined") for i, time_s in enumerate(arrivals)]
    changes += [Change(0.5 * undisturbed_s, engine, "died") for engine in sorted(slow) if trouble.given_up]
    engines = [
        PlainEngine(slow_times if engine in slow else times, int(task.disturbed_slots))
        for engine in range(number + len(arrivals))
    ]
    return engines, changes
