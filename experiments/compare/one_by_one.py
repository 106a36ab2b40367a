"""Train arms one after the other, each as a run of task=train with all devices, for policies that fill the devices.

The comparison reads the arms' folders. An arm that has finished there with the same settings is not run again, so the
user may also run arms by hand, on several machines.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from analysis import read
from experiments.arm.resume import arguments, hint, interleaved, set_rows, start_again
from experiments.run import child
from experiments.run.errors import RunFailed, UserError
from experiments.run.progress import Progress
from experiments.settings.config import METHOD, WORK, RunConfig


def run_arms(
    arms: Mapping[str, RunConfig],
    overrides: Mapping[str, Sequence[str]],
    folder: Path,
    progress: Progress,
) -> None:
    """Run the arms that are not finished in folder/arms. overrides: arm -> the overrides that make its config.

    Raises RunFailed with a one-line message if an arm fails, and UserError if a finished arm had other settings.
    """
    for name, config in arms.items():
        path = folder / "arms" / name
        if finished(path, config):
            progress.note(f"{name} is finished already")
            continue
        progress.note(f"{name}:")
        start_again(path, unless=partial(hint, path))
        train(config, own_command(config, overrides[name], path, folder.name), path, progress)
    set_rows(folder / "metrics.jsonl", interleaved([read.metrics(folder / "arms" / name) for name in arms]))


def finished(path: Path, config: RunConfig) -> bool:
    """Return whether the arm in `path` has finished. Raises UserError if it ran with other settings than `config`."""
    if not (path / "result.json").exists():  # the last file that a run writes
        return False
    wanted, recorded = config.resolved, read.config(path)
    if config.data.problems is None:  # null asks for all problems; the run recorded how many there are
        recorded["data"]["problems"] = None
    differing = [key for key in (*METHOD, *WORK, "eval") if wanted[key] != recorded[key]]
    if differing:
        raise UserError(f"{path} holds an arm that ran with another {' and '.join(differing)}: move it away")
    return True


def own_command(config: RunConfig, overrides: Sequence[str], path: Path, group: str) -> list[str]:
    """Return the command that trains the arm in the folder `path`, or resumes it there. group: name of its W&B
    group."""
    launch = ["-m", *shlex.split(config.engine.launch)] if config.engine.processes > 1 else []
    own = [override for override in overrides if not override.startswith(("task=", "task.", "resume="))]
    own += ["task=train", f"task.group='{group}'"]
    return [sys.executable, *launch, *arguments(path, own)]


def train(config: RunConfig, command: Sequence[str], path: Path, progress: Progress) -> None:
    """Run the command of one arm, and print its output. Its error output goes to launch.txt.

    Raises RunFailed with the arm's error line.
    """
    errors = path / "launch.txt"
    with errors.open("w") as file:
        code = child.run(command, progress.note, file)
    if code:
        error_lines = [line for line in errors.read_text().splitlines() if line.startswith("error: ")]
        reason = error_lines[0].removeprefix("error: ") if error_lines else f"exit code {code}"
        raise RunFailed(f"arm {config.arm.name}: {reason} (log: {path / 'log.txt'}, {errors})")
