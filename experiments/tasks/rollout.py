"""task=rollout: roll out with one arm, without training. The policy stays the same; the drafter's history grows."""

import sys
from pathlib import Path

from analysis.metrics import cluster_result, summarised
from experiments.arm.data import dataset
from experiments.arm.policies import policy_directory
from experiments.arm.rollout_steps import RolloutRun, record_rollouts
from experiments.arm.validate import check
from experiments.run.errors import RunFailed
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Roll out `task.steps` batches of prompts. Prints a line for each batch and writes result.json."""
    check(config)
    steps = int(config.task.steps)
    progress = Progress(steps)
    policy = policy_directory(config, progress.note)
    rows = dataset(config, policy, progress.note)
    run_folder = RunFolder(Path(folder), config.with_problems(len(rows)).resolved)
    log = Path(folder) / "log.txt"
    with quiet_into(log) as progress.terminal, progress.starting(config.arm.name, log):
        metrics = record_rollouts(RolloutRun(config, policy, steps), run_folder, progress)
    progress.terminal = sys.stdout
    if config.arm.drafts and not any(row["drafted"] for row in metrics):
        raise RunFailed(
            f"arm {config.arm.name} drafted nothing in {len(metrics)} rollouts: speculation was silently off"
        )
    result = {"arms": {config.arm.name: summarised(metrics)}, **cluster_result(metrics)}
    progress.note(f"result: {run_folder.write_result(result)}")
