"""Simulate recorded arms with the engine, drafter, budget and order of requests of their configs, on any machine."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from analysis import read
from das.drafter import make_drafter
from das.engine.settings import EngineSettings, find_method
from das.trl.dataset_rows import history_tick
from experiments.arm.engine import make_schedule
from experiments.settings.checked import plain
from experiments.settings.config import problems_per_step
from experiments.settings.groups import made_budget
from experiments.simulate.engine import Step, simulate_rollout
from experiments.simulate.rollouts import read_rollouts
from experiments.simulate.text_engine import Arm
from experiments.simulate.times import Passes, PassTimes, Times, fit_drafting
from experiments.simulate.workload import Workload

MOST_TOKENS = 1_000_000  # tokens of all responses; to simulate 100,000 of them with drafts takes some seconds
FEWEST = 10  # passes to which times are fitted
PROMPT = 32  # tokens that every prompt is taken to have; rows of responses do not hold the prompts
COUNTS = ("step_live", "step_tokens")  # of a pass


def replay_arm(works: list[Workload], times: PassTimes, config: DictConfig) -> list[Step]:
    """Simulate the steps of an arm with the engine, drafter, budget and order of requests of its config."""
    drafter = plain(config.drafter)
    unit = drafter.pop("unit")
    budget = made_budget(plain(config.arm.get("budget") or config.budget))
    settings = EngineSettings("recorded", config.arm.method, drafter=drafter, budget=budget)
    arm = Arm(settings.budget, partial(make_drafter, settings.drafter)) if settings.row.drafts else Arm()
    engine = arm.engine(times, int(config.engine.max_num_seqs), int(config.trainer.max_completion_length))
    per_step = problems_per_step(config.trainer, config.engine.processes)
    schedule = make_schedule(config.schedule)
    steps = []
    for i, work in enumerate(works):
        order = list(range(len(work))) if schedule is None else schedule.order(work.problems)
        tick = history_tick(unit, i + 1, config.data.problems, per_step)
        steps.append(simulate_rollout(work, [engine], [order], tick))
        if schedule is not None:
            schedule.observe(work.problems, work.lengths.tolist())
    return steps


def replay_errors(arms: Mapping[str, Path]) -> dict[str, float]:
    """Simulate the rollouts of a run, at times of passes that are fitted to every second step. Returns arm -> simulated
    / measured time of the other steps, minus 1.

    arms: name -> folder. Arms that cannot be replayed are left out. The result is empty if several processes rolled
    out, if responses have more than MOST_TOKENS tokens, and for fewer than FEWEST passes.
    """
    configs: dict[str, Any] = {name: OmegaConf.load(path / "config.yaml") for name, path in arms.items()}
    configs = {name: config for name, config in configs.items() if find_method(config.arm.method).simulated}
    rows = {name: read.metrics(arms[name]) for name in configs}
    every_row = [row for of_arm in rows.values() for row in of_arm]
    if sum(row["tokens"] for row in every_row) > MOST_TOKENS:
        return {}
    if any(config.engine.processes > 1 or len(rows[name]) < 2 for name, config in configs.items()):
        return {}
    lines = [read.timeline(arms[name], row["step"]) for name in configs for row in rows[name][::2]]
    seconds = np.concatenate([[], *(np.diff(line["step_time_s"]) for line in lines)])
    if len(seconds) < FEWEST:
        return {}
    live, tokens = (np.concatenate([np.array(line[key][1:], float) for line in lines]) for key in COUNTS)
    form = fit_drafting(Passes(live, tokens, np.zeros(len(live)), seconds))
    first, beginning = (np.array([line[key][0] for line in lines], float) for key in ("step_time_s", "step_live"))
    prompts_s = np.maximum(0, first - form.predict(beginning, beginning, beginning)).mean() / beginning.mean()
    times = Times(form, prefill=float(prompts_s) / PROMPT)
    errors = {}
    for name, config in configs.items():
        steps = replay_arm(read_rollouts(arms[name], prompt=PROMPT), times, config)[1::2]
        errors[name] = sum(step.rollout_s for step in steps) / sum(row["rollout_s"] for row in rows[name][1::2]) - 1
    return errors
