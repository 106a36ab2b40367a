"""Arms one after another, each a run of task=train that has all devices: for policies that fill them.

The comparison is made from the arms' folders. An arm that has finished there already, with the same settings, is not
run again: so arms may also be run by hand, on several machines.
"""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig

from analysis import read
from experiments.harness.resume import hint, hold, set_metrics
from experiments.run import child
from experiments.run.errors import CONFIGS, RunFailed, UserError
from experiments.run.plain import plain
from experiments.run.progress import Progress

WORK = ("arm", "policy", "data", "reward", "trainer", "engine", "drafter", "budget", "schedule", "seed")


def run_arms(
    arms: Mapping[str, DictConfig],
    overrides: Mapping[str, Sequence[str]],
    folder: Path,
    progress: Progress,
) -> None:
    """Run what is missing in folder/arms. overrides: what makes each arm's config.

    Raises RunFailed, in one line, when an arm fails, and UserError for a finished arm of other settings.
    """
    for name, config in arms.items():
        path = folder / "arms" / name
        if finished(path, config):
            progress.note(f"{name} is finished already")
            continue
        progress.note(f"{name}:")
        hold(path).close()  # refused where the arm still runs
        if not hint(path):
            shutil.rmtree(path)  # of a run that was broken off before its first checkpoint
            path.mkdir(parents=True)
        train(name, config, overrides[name], path, folder.name, progress)
    rows = [read.metrics(folder / "arms" / name) for name in arms]
    # In the order in which arms in lock step leave them.
    set_metrics(folder, [row for step in zip(*rows, strict=True) for row in step])


def finished(path: Path, config: DictConfig) -> bool:
    """Whether the arm in `path` came to its end. Raises UserError if it did other work than `config` says."""
    if not (path / "result.json").exists():  # the last thing a run writes
        return False
    wanted, found = plain(config), read.config(path)
    if wanted["data"]["problems"] is None:  # all of them; the run has counted them
        found["data"]["problems"] = None
    differing = [key for key in WORK if wanted[key] != found[key]]
    if differing:
        raise UserError(f"{path} holds an arm with another {' and '.join(differing)}: move it away")
    return True


def train(name: str, config: DictConfig, overrides: Sequence[str], path: Path, group: str, progress: Progress) -> None:
    """One arm, in as many processes as it asks for; its lines go through. The launcher's own go to launch.txt."""
    launch = ["-m", *shlex.split(config.engine.launch)] if config.engine.processes > 1 else []
    own = [override for override in overrides if not override.startswith(("task=", "task.", "resume="))]
    own += ["task=train", f"task.group='{group}'", f"hydra.run.dir='{path.absolute()}'"]
    if hint(path):
        own = [f"resume='{path.absolute()}'"]
    errors = path / "launch.txt"
    with errors.open("w") as file:
        code = child.run([sys.executable, *launch, str(CONFIGS.parent / "run.py"), *own], progress.note, file)
    if code:
        said = [line for line in errors.read_text().splitlines() if line.startswith("error: ")]
        reason = said[0].removeprefix("error: ") if said else f"exit code {code}"
        raise RunFailed(f"arm {name}: {reason} (log: {path / 'log.txt'}, {errors})")
