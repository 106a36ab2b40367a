"""task=bench_budgets: which budget makes rollouts shortest?

There are two engines, each in its own process. One does not speculate. In the other, the budget policies take turns,
rollout by rollout; each has its own drafter and history of past responses. All roll out the same requests with the same
noise, so all must emit the same tokens, which is checked.

result.json: WORKLOAD.POLICY.{ratio, quartiles, tokens_per_pass ...}
ratio      sum of rollout times / the sum without speculation; the quartiles are over the ratios of single rollouts

WORKLOAD/POLICY/rollouts/ holds the timeline of each rollout.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from analysis.task_figures import budgets_figure
from experiments.bench.budgets.workloads import Requests, requests_of, rollouts, untrained, with_tokenizer
from experiments.harness.engine import engine_settings
from experiments.harness.policies import policy_directory
from experiments.harness.replays.timed import BASELINE, TimedEngines
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, write_timeline
from experiments.settings.compose import compose_config
from experiments.settings.config import RunConfig, run_config


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Roll out every workload with every budget policy. Prints a line for each policy; writes result.json and a
    figure."""
    task = config.task
    arms = policy_arms(task, overrides)
    workloads = {f"live_{live}": requests_of(config, int(live), hopeless=False) for live in task.live}
    if task.hopeless:
        workloads["hopeless"] = requests_of(config, int(task.hopeless_live), hopeless=True)
    for arm in arms.values():
        engine_settings(run_config(arm), "unnamed")  # refuses before anything starts what an engine would refuse
    if not workloads:
        raise UserError("task.live=[] and task.hopeless=false: no workload is left; name numbers of live requests")
    progress = Progress(int(task.steps), len(arms) * len(workloads))
    run_folder = RunFolder(Path(folder), config.resolved)
    policy = policy_directory(config, progress.note)
    if task.shape is not None:
        policy = with_tokenizer(str(task.shape), policy, Path(config.cache))
    progress.note(f"starting 2 engines; {', '.join(arms)} on {', '.join(workloads)}; logs in {folder}")
    rows = roll_workloads(config, arms, workloads, policy, run_folder, progress)
    result = {name: measure([row for row in rows if row["workload"] == name], [*arms]) for name in workloads}
    for name, measured in result.items():
        progress.note(f"{name}:")
        for label, row in sorted(measured.items(), key=lambda item: item[1]["ratio"]):
            low, high = row["quartiles"]
            progress.note(
                f"    {label:16s}{row['ratio']:.3f} [{low:.3f}, {high:.3f}] of none   "
                f"tokens/pass {row['tokens_per_pass']:5.2f}   drafted {row['drafted']:7d}   accepted "
                f"{row['accepted']:7d}"
            )
    budgets_figure(result, Path(folder) / "budgets.png")
    progress.note(f"result: {run_folder.write_result(result)}")


def policy_arms(task: Any, overrides: Sequence[str]) -> dict[str, DictConfig]:
    """Return label -> config of each budget policy that is to run. The policy without speculation is the first."""
    labels = [str(label) for label in task.only or task.policies]
    unknown = [label for label in labels if label not in task.policies]
    if unknown or not labels or BASELINE in labels:
        raise UserError(
            f"task.only={labels}: choose from {', '.join(task.policies)}; `{BASELINE}` (no speculation) always runs"
        )
    others = [override for override in overrides if not override.startswith("arm=")]
    arms = {BASELINE: compose_config([*others, "arm=none"])}
    for label in labels:
        own = list(task.policies[label])
        names_arm = any(override.startswith("arm=") for override in own)
        arms[label] = compose_config([*others, *([] if names_arm else ["arm=das"]), *own])
    return arms


def roll_workloads(
    config: RunConfig,
    arms: Mapping[str, DictConfig],
    workloads: Mapping[str, Requests],
    policy: str,
    run_folder: RunFolder,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Roll out all workloads. Returns the rows of metrics of all rollouts. Hopeless workloads, in which no draft can be
    accepted, get engines with untrained weights."""
    rows: list[dict[str, Any]] = []
    max_num_seqs = max(requests.live for requests in workloads.values())
    for hopeless in (False, True):
        chosen = {name: requests for name, requests in workloads.items() if requests.hopeless == hopeless}
        if not chosen:
            continue
        weights = untrained(policy, run_folder.path / "untrained") if hopeless else policy
        drafting = {label: arm for label, arm in arms.items() if label != BASELINE}
        two = {"plain": {BASELINE: arms[BASELINE]}, "drafting": drafting}
        warm_up = {"warm-up": requests_of(config, int(config.trainer.num_generations), hopeless=False)}
        with closing(TimedEngines(two, weights, {"max_num_seqs": max_num_seqs}, run_folder.path)) as engines:
            engines.ready()
            for work in rollouts(config, warm_up, 1, weights):
                for label in (BASELINE, next(iter(drafting))):
                    engines.roll_out(label, work)
            if not progress.done:
                progress.start()
            for work, label, timed in engines.in_turns(rollouts(config, chosen, int(config.task.steps), weights)):
                rows.append(timed.row)
                folder = run_folder.path / work.history / label
                (folder / "rollouts").mkdir(parents=True, exist_ok=True)
                write_timeline(folder, timed.row["step"], timed.timeline)
                run_folder.add_metrics(timed.row)
                progress.step(timed.row)
    return rows


def measure(rows: Sequence[dict[str, Any]], labels: Sequence[str]) -> dict[str, Any]:
    """Return a dict of results for each label: rollout times, and token counts. rows: the rows of one
    workload."""
    seconds = {label: np.array([row["rollout_s"] for row in rows if row["arm"] == label]) for label in labels}
    measured = {}
    for label in labels:
        of_policy = [row for row in rows if row["arm"] == label]
        ratios = seconds[label] / seconds[BASELINE]
        measured[label] = {
            "n": len(of_policy),
            "rollout_s": float(seconds[label].sum()),
            "ratio": float(seconds[label].sum() / seconds[BASELINE].sum()),
            "quartiles": [float(q) for q in np.quantile(ratios, [0.25, 0.75])],
            "median_ratio": float(np.median(ratios)),
            "tokens_per_pass": sum(row["tokens"] for row in of_policy) / sum(row["passes"] for row in of_policy),
            "drafted": sum(row["drafted"] for row in of_policy),
            "accepted": sum(row["accepted"] for row in of_policy),
        }
    return measured
