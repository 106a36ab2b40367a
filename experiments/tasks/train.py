"""task=train: train one arm, in as many processes as engine.processes says. task=rollout: roll out with one arm,
without training: the policy stays the same, the drafter's history grows."""

import json
import os
import sys
from pathlib import Path

from analysis import read
from analysis.metrics import cluster_result, summarised
from das.engine.settings import EXACT
from das.general import ranks
from das.general.files import write_text
from experiments.arm import resume
from experiments.arm.data import dataset
from experiments.arm.failures import one_line_failure
from experiments.arm.policies import policy_directory
from experiments.arm.rollout_steps import RolloutRun, record_rollouts
from experiments.arm.train_arm import ArmRun, make_parts, train_arm
from experiments.arm.validate import check, check_processes
from experiments.run import processes
from experiments.run.errors import RunFailed
from experiments.run.progress import Progress, quiet_into
from experiments.run.run_folder import RunFolder
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig
from experiments.training.barrier import Barrier


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Train the arm and print a line for each step. Only the main process prints; every process writes a log."""
    path = Path(folder)
    progress = Progress(config.trainer.max_steps)
    if not ranks.is_main():
        progress.terminal = open(os.devnull, "w")  # noqa: SIM115  it stays open until the process ends
    start = 0
    with processes.main_first():
        check_processes(config)
        check(config)
        if ranks.fsdp_on_cpu():
            progress.note("FSDP 2: accelerate has none on a CPU, so torch's fully_shard shards the policy")
        if config.resume is not None and ranks.is_main():
            start = resume.newest({path: config}, progress.note)
            resume.rewind(path, start)
            resume.announce(path, start, progress)
        if ranks.is_main():
            resume.remember(path, composed.overrides)
        policy = make_parts([config], progress.note)
        progress.note(EXACT[config.engine.exact])
    start = ranks.gather(start)[0]
    group = config.task.group or path.name
    with one_line_failure(path), quiet_into(processes.own_file(path / "log.txt")) as terminal:
        if ranks.is_main():
            progress.terminal = terminal
        with progress.starting(config.arm.name, path / "log.txt"):
            train_arm(ArmRun(config, policy, path, group, Barrier(progress.step), start=start))
    if not ranks.is_main():
        return
    progress.terminal = sys.stdout
    metrics = read.metrics(path)
    result = {"baseline": config.arm.name, "arms": {config.arm.name: summarised(metrics)}, **cluster_result(metrics)}
    write_text(path / "result.json", json.dumps(result, indent=1))
    progress.note(f"run: {folder}")


def roll_out(config: RunConfig, composed: Composed, folder: str) -> None:
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
