"""task=train: one arm alone, on as many processes as engine.processes says."""

import json
import os
import sys
from pathlib import Path

from omegaconf import DictConfig

from analysis import read
from analysis.arms import summarised
from das.training import ranks
from das.training.turns import Alone
from experiments.harness import resume, setup
from experiments.harness.arm import train_arm
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import write_text


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Train the arm, print a line a step. Of several processes the main one speaks, all keep a log."""
    progress = Progress(int(config.trainer.max_steps))
    if not ranks.is_main():
        progress.terminal = open(os.devnull, "w")  # noqa: SIM115  to the end of the process
    path = Path(folder)
    lock = resume.hold(path) if ranks.is_main() else None
    start = 0
    with ranks.main_first():
        setup.check_processes(config)
        setup.check(config)
        if config.resume is not None:
            start = resume.newest({path: config}, progress.note)
            resume.rewind(path, start)
            resume.announce(path, start, progress)
        if ranks.is_main():
            resume.remember(path, overrides)
        policy = setup.policy_directory(config, progress.note)
        setup.dataset(config, policy, progress.note)
    group = config.task.group or path.name
    with resume.stopped_in(path), quiet_into(ranks.own_file(path / "log.txt")) as terminal:
        if ranks.is_main():
            progress.terminal = terminal
        train_arm(config, policy, path, group, Alone(progress.step), start=start)
    if lock is None:
        return
    progress.terminal = sys.stdout
    result = {"baseline": config.arm.name, "arms": {config.arm.name: summarised(read.metrics(Path(folder)))}}
    write_text(Path(folder) / "result.json", json.dumps(result, indent=1))
    lock.close()
    progress.note(f"run: {folder}")
