"""task=bench_synthesis: does a synthetic workload take the tokens per pass and the time of the recorded one?

Of each trace, every second response is replaced by one made of the others, as long as it was. What is copied in a row
is fitted with fixed drafts and one seed; it is judged by other seeds, with those drafts and with the configured budget.
result.json: a key a trace: run, problems, responses; budgets.NAME.{recorded, synthetic}, each {tokens_per_pass,
rollout_s, by_epoch}, the latter a list over seeds; budgets.NAME.error.{tokens_per_pass, rollout_s}: mean over seeds /
recorded - 1.
"""

from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from das.budget import make_budget
from das.drafter import HistoryDrafter
from das.replay.cluster import simulate_rollout
from das.replay.synthesis import fitted_run, half_changed
from das.replay.text_engine import TextEngine
from das.replay.times import Times
from das.replay.workload import Workload, workload
from experiments.harness.config import run_config
from experiments.harness.validate import check
from experiments.papers.replayed import VARIANTS
from experiments.recorded.latency_files import step_table
from experiments.recorded.rollouts import grouped, read_rollouts
from experiments.run.checks import at_least_one
from experiments.run.errors import UserError
from experiments.run.plain import plain
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

MEASURES = ("tokens_per_pass", "rollout_s")
FITTED = 0  # seed of the fit; 1, 2 ... judge


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Fit and judge each trace, print a line a budget, write result.json."""
    check(run_config(config))
    task = config.task
    at_least_one(task, "problems", "responses", "group", "fixed", "seeds")
    if not task.traces:
        raise UserError("task.traces=[]: name at least one trace")
    if config.budget.name == "none":
        raise UserError("budget=none drafts nothing, whatever the text: choose another")
    times = Times(step_table(task.step_ms))
    budgets = {f"fixed {task.fixed}": {"name": "fixed", "tokens": int(task.fixed)}}
    budgets[str(config.budget.name)] = plain(config.budget)
    chosen = {Path(path).name.removesuffix(".jsonl.gz"): choose(Path(path), task) for path in task.traces}
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    result = {name: judge(name, work, times, budgets, task, progress) for name, work in chosen.items()}
    progress.note(f"result: {run_folder.write_result(result)}")


def choose(path: Path, task: DictConfig) -> Workload:
    """The first problems of a trace, each with as many responses in whole groups; of several wordings the first."""
    steps = read_rollouts(path)
    members: dict[str, list[np.ndarray]] = {}
    for step in steps:
        for i, problem in enumerate(step.problems):
            members.setdefault(problem, []).append(step.response(i))
    every = VARIANTS.get(path.name.removesuffix(".jsonl.gz"), 1)
    texts = {name: members[name] for name in list(members)[::every][: int(task.problems)]}
    group = int(task.group)
    count = min(*map(len, texts.values()), int(task.responses)) // group * group
    if count < 2 * group:
        raise UserError(
            f"{path}: {min(map(len, texts.values()))} responses of a problem, task.responses={task.responses}: two "
            f"groups of task.group={group} are needed"
        )
    return workload(
        [name for name in texts for _ in range(count)], [text for mine in texts.values() for text in mine[:count]]
    )


def replayed(work: Workload, times: Times, budget: dict[str, Any], group: int) -> dict[str, Any]:
    """Epoch after epoch, the next `group` responses of every problem at once on one engine."""
    epochs = grouped(work, group, 0)
    engine = TextEngine(times, len(epochs[0]), HistoryDrafter(), make_budget(budget), int(work.lengths.max()))
    steps = [simulate_rollout(epoch, [engine], [range(len(epoch))], i + 1) for i, epoch in enumerate(epochs)]
    return {
        "tokens_per_pass": sum(step.tokens for step in steps) / sum(step.passes for step in steps),
        "rollout_s": sum(step.rollout_s for step in steps),
        "by_epoch": [step.tokens_per_pass for step in steps],
    }


def judge(
    name: str, work: Workload, times: Times, budgets: dict[str, dict[str, Any]], task: DictConfig, progress: Progress
) -> dict[str, Any]:
    """Fit to one trace, then replay the trace and what was made."""
    group = int(task.group)
    fixed = next(iter(budgets.values()))
    run = fitted_run(work, lambda w: replayed(w, times, fixed, group)["tokens_per_pass"], FITTED)
    problems = len(set(work.problems))
    responses = len(work) // problems
    made = [half_changed(work, run, seed) for seed in range(FITTED + 1, FITTED + 1 + int(task.seeds))]
    progress.note(f"{name}: {problems} problems x {responses} responses, {len(work.tokens):,} tokens, run {run:.2f}")
    found: dict[str, Any] = {"run": run, "problems": problems, "responses": responses, "budgets": {}}
    for label, budget in budgets.items():
        goal = replayed(work, times, budget, group)
        rows = [replayed(w, times, budget, group) for w in made]
        mean = {key: float(np.mean([row[key] for row in rows])) for key in MEASURES}
        error = {key: mean[key] / goal[key] - 1 for key in MEASURES}
        found["budgets"][label] = {"recorded": goal, "synthetic": rows, "error": error}
        progress.note(
            f"    {label:10s} tokens/pass {goal['tokens_per_pass']:.3f} recorded, {mean['tokens_per_pass']:.3f} "
            f"synthetic ({error['tokens_per_pass']:+.1%})   time {goal['rollout_s']:.1f} s, {mean['rollout_s']:.1f} s "
            f"({error['rollout_s']:+.1%})"
        )
    return found
