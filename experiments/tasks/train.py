"""task=train: train one arm, in as many processes as engine.processes says."""

import json
import os
import sys
from pathlib import Path

from analysis import read
from analysis.metrics import cluster_result, summarised
from das.engine.settings import EXACT
from das.general import ranks
from das.general.files import write_text
from experiments import rank_folders
from experiments.arm import resume
from experiments.arm.failures import one_line_failure
from experiments.arm.train_arm import ArmRun, make_parts, train_arm
from experiments.arm.validate import check, check_processes
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
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
    with rank_folders.main_first():
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
    with one_line_failure(path), quiet_into(rank_folders.own_file(path / "log.txt")) as terminal:
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
