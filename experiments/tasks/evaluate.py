"""task=evaluate: measure how many problems of a set a policy solves (pass@k with intervals).

The intervals are percentiles of a bootstrap over problems: the problems are drawn 10,000 times with replacement. So an
interval shows how much another choice of problems would change pass@k. Writes result.json and a figure.
"""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from analysis.figures import evaluate_figure
from das.engine.rollouts.rollout import Rollout
from das.general.side_output import stage
from experiments.arm.data import split_rows
from experiments.arm.engine import engine_settings, prepare_process
from experiments.arm.evaluation import Evaluation, alike, judge_config, ks_of, renamed_keys
from experiments.arm.models import policy_directory
from experiments.arm.reward import make_reward
from experiments.arm.validate import check
from experiments.run.progress import Progress, quiet_into
from experiments.run.run_folder import RunFolder, rollout_row
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig
from experiments.settings.groups import MadeData
from experiments.training.engines import build_in_process

GENERATED_PROBLEMS = 128  # number of problems if no setting says how many
FULL = 4  # a rollout has 4 times the requests that decode at once, so that its slow end costs little


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Sample and judge responses. Prints a line for each rollout and each k; writes result.json and pass_at_k.png."""
    config, key = _with_set(config)
    samples = int(config.task.samples)
    ks = ks_of(config.task.k, samples, "task")
    check(config, in_steps=False)
    policy = policy_directory(config, print)
    with renamed_keys({"data.problems": key, "eval.problems": key}):
        rows, summary, left_out = split_rows(config.data, "evaluation", config, policy)
    run_folder = RunFolder(Path(folder), config.with_problems(len(rows)).resolved)
    at_once = max(1, FULL * config.engine.max_num_seqs // samples)
    parts = [slice(first, first + at_once) for first in range(0, len(rows), at_once)]
    progress = Progress(len(parts))
    progress.note(f"{summary or f'data {config.data.name}'}; {len(rows)} problems x {samples} responses of {policy}")
    if line := alike(config, samples, "task.samples"):
        progress.note(line)
    if left_out:
        progress.note(
            f"WARNING: {left_out} problems were left out, most of them too long: pass@k is of the {len(rows)} others, "
            "and likely too high. Room for a prompt: engine.max_model_len less trainer.max_completion_length"
        )
    log = Path(folder) / "log.txt"
    with quiet_into(log) as progress.terminal, progress.starting(config.arm.name, log):
        found = _measured(config, policy, rows.to_list(), parts, ks, run_folder, progress)
    progress.terminal = sys.stdout
    accuracy = {}
    for k, mean in found.pop("pass_at_k").items():
        low, high = found["interval"][k]
        accuracy[k] = {"mean": mean, "low": low, "high": high}
        progress.note(f"pass@{k:<5s} {mean:.4f}   95 % {low:.4f} to {high:.4f} (bootstrap over problems)")
    del found["interval"]
    result = {
        "policy": policy,
        "data": config.data.name,
        "problems": len(rows),
        "problems_left_out": left_out,
        "pass_at_k": accuracy,
        "tokens_per_pass": found["tokens"] / found.pop("passes"),
        **found,
        "correct": dict(zip(rows["problem_id"], found["correct"], strict=True)),
    }
    evaluate_figure(result, Path(folder) / "pass_at_k.png")
    progress.note(f"figure: {folder}/pass_at_k.png")
    progress.note(f"result: {run_folder.write_result(result)}")


def _with_set(config: RunConfig) -> tuple[RunConfig, str]:
    """Return the config with this task's number of problems, and with the reward that fits the set of problems; and the
    key with which the user sets that number."""
    made, problems = isinstance(config.data, MadeData), config.task.problems
    key = "task.problems" if made or problems is not None else "data.problems"
    if problems is None:
        problems = GENERATED_PROBLEMS if made else config.data.problems
    data = config.data.model_copy(update={"problems": problems})
    return config.model_copy(update={"data": data, "reward": judge_config(config.reward, data)}), key


def _measured(
    config: RunConfig,
    policy: str,
    rows: list[dict[str, Any]],
    parts: list[slice],
    ks: list[int],
    run_folder: RunFolder,
    progress: Progress,
) -> dict[str, Any]:
    """Roll out and judge one part of the problems after the other, and record them. Returns what all of them say.

    A seed depends on the problem and the sample only, so the division into parts changes no response.
    """
    prepare_process(config)
    evaluation = Evaluation(config, policy, rows, make_reward(config.reward), int(config.task.samples))
    engine = build_in_process(engine_settings(config, policy))
    rollouts: list[Rollout] = []
    rewards: list[float] = []
    with closing(evaluation):
        for number, part in enumerate(parts, start=1):
            stage("rolls out")
            _, rollout = engine.roll_out(evaluation.request(0, part))
            given = evaluation.judged(rollout, part)
            rollouts.append(rollout)
            rewards += given
            row = {"arm": config.arm.name, "step": number, "reward": float(np.mean(given)), **rollout_row(rollout)}
            run_folder.add_step(row, rollout, given)
            progress.step(row)
        found = evaluation.measured(rollouts, rewards, ks)
    return found | {"rollout_s": sum(rollout.rollout_s for rollout in rollouts)}
