"""task=bench_synthesis: does a synthetic workload have the tokens per pass and the rollout time of the recorded one?

In each trace, every second response is replaced by a synthetic one of the same length, made from the others. The number
of tokens that synthetic text copies in a row is fitted with fixed drafts and one seed. It is judged with other seeds,
with fixed drafts and with the configured budget.

result.json has a key per trace: run (tokens copied in a row), problems, responses; budgets.NAME.{recorded, synthetic},
each {tokens_per_pass, rollout_s, by_epoch}, and a list of these over seeds for `synthetic`;
budgets.NAME.error.{tokens_per_pass, rollout_s}: mean over seeds / recorded - 1.
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
from experiments.recorded.latency_files import step_table
from experiments.recorded.published_traces import PROMPT_VARIANTS
from experiments.recorded.rollouts import grouped, read_rollouts
from experiments.run.checks import at_least_one
from experiments.run.errors import UserError
from experiments.run.plain import plain
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

MEASURES = ("tokens_per_pass", "rollout_s")
FIT_SEED = 0  # the seeds after it judge the fit


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Fit to each trace and judge the fit; print a line per budget, write result.json."""
    check(run_config(config))
    task = config.task
    at_least_one(task, "problems", "responses", "group", "fixed", "seeds")
    if not task.traces:
        raise UserError("task.traces=[]: name at least one trace")
    if config.budget.name == "none":
        raise UserError("budget=none drafts nothing, whatever the text: choose another budget")
    times = Times(step_table(task.step_ms))
    budgets = {f"fixed {task.fixed}": {"name": "fixed", "tokens": int(task.fixed)}}
    budgets[str(config.budget.name)] = plain(config.budget)
    works = {Path(path).name.removesuffix(".jsonl.gz"): whole_groups(Path(path), task) for path in task.traces}
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    result = {name: judge(name, work, times, budgets, task, progress) for name, work in works.items()}
    progress.note(f"result: {run_folder.write_result(result)}")


def whole_groups(path: Path, task: DictConfig) -> Workload:
    """The first problems of a trace, all with the same number of responses, a multiple of task.group.

    Of several prompts of a problem (PROMPT_VARIANTS) only the first is taken.
    """
    steps = read_rollouts(path)
    members: dict[str, list[np.ndarray]] = {}
    for step in steps:
        for i, problem in enumerate(step.problems):
            members.setdefault(problem, []).append(step.response(i))
    variants = PROMPT_VARIANTS.get(path.name.removesuffix(".jsonl.gz"), 1)
    texts = {name: members[name] for name in list(members)[::variants][: int(task.problems)]}
    group = int(task.group)
    count = min(*map(len, texts.values()), int(task.responses)) // group * group
    if count < 2 * group:
        raise UserError(
            f"{path}: {min(map(len, texts.values()))} responses of a problem, task.responses={task.responses}: two "
            f"groups of task.group={group} are needed"
        )
    return workload(
        [name for name in texts for _ in range(count)],
        [text for responses in texts.values() for text in responses[:count]],
    )


def replay_epochs(work: Workload, times: Times, budget: dict[str, Any], group: int) -> dict[str, Any]:
    """Replay the workload on one engine. Each epoch decodes the next `group` responses of all problems at once."""
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
    """Fit with the first budget, then replay one trace and its synthetic workloads of other seeds with every budget."""
    group = int(task.group)
    fixed = next(iter(budgets.values()))
    run_length = fitted_run(work, lambda made: replay_epochs(made, times, fixed, group)["tokens_per_pass"], FIT_SEED)
    problems = len(set(work.problems))
    responses = len(work) // problems
    seeds = range(FIT_SEED + 1, FIT_SEED + 1 + int(task.seeds))
    synthetic = [half_changed(work, run_length, seed) for seed in seeds]
    progress.note(
        f"{name}: {problems} problems x {responses} responses, {len(work.tokens):,} tokens; "
        f"{run_length:.2f} tokens are copied in a row"
    )
    result: dict[str, Any] = {"run": run_length, "problems": problems, "responses": responses, "budgets": {}}
    for label, budget in budgets.items():
        recorded = replay_epochs(work, times, budget, group)
        rows = [replay_epochs(w, times, budget, group) for w in synthetic]
        mean = {key: float(np.mean([row[key] for row in rows])) for key in MEASURES}
        error = {key: mean[key] / recorded[key] - 1 for key in MEASURES}
        result["budgets"][label] = {"recorded": recorded, "synthetic": rows, "error": error}
        progress.note(
            f"    {label:10s} tokens/pass {recorded['tokens_per_pass']:.3f} recorded, {mean['tokens_per_pass']:.3f} "
            f"synthetic ({error['tokens_per_pass']:+.1%})   time {recorded['rollout_s']:.1f} s, "
            f"{mean['rollout_s']:.1f} s ({error['rollout_s']:+.1%})"
        )
    return result
