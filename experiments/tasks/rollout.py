"""task=rollout: one arm's rollouts without training. The policy stays as it is, the history grows."""

import sys
from pathlib import Path

from omegaconf import DictConfig

from analysis.arms import summary
from experiments.harness import setup
from experiments.harness.rolls import roll_steps
from experiments.run.errors import RunFailed
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Roll out `task.steps` batches, print a line each."""
    setup.check(config)
    progress = Progress(int(config.task.steps))
    policy = setup.policy_directory(config, progress.note)
    config.data.problems = len(setup.dataset(config, policy, progress.note))
    run_folder = RunFolder(Path(folder), config)
    with quiet_into(Path(folder) / "log.txt") as progress.terminal:
        metrics = roll_steps(config, policy, run_folder, progress)
    progress.terminal = sys.stdout
    if config.arm.method != "none" and not any(row["drafted"] for row in metrics):
        raise RunFailed(
            f"arm {config.arm.name} drafted nothing in {len(metrics)} rollouts: speculation was silently off"
        )
    keys = ("rollout_s", "tokens", "passes", "tokens_per_pass", "drafted", "accepted", "draft_share")
    result = {"arms": {config.arm.name: {key: summary([row[key] for row in metrics]) for key in keys}}}
    progress.note(f"result: {run_folder.write_result(result)}")
