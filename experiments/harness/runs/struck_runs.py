"""Start the runs that task=kill_test and task=fault_test disturb, each in its own process group, and wait for them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.validate import check, refuse_one_arm
from experiments.run import child
from experiments.run.errors import CONFIGS, RunFailed, UserError
from experiments.settings.compose import compose_config
from experiments.settings.config import RunConfig, run_config

ROOT = CONFIGS.parent
ORPHAN_S = 10.0  # seconds within which processes must end after their parent was killed


def plan(config: RunConfig, overrides: Sequence[str], known: Sequence[str], task: str) -> tuple[list[str], list[str]]:
    """Return the kinds of faults that `task.kinds` chooses among the known ones, and the settings of the disturbed run.

    task: the name of the disturbed run's task. Raises UserError if a kind does not exist or a setting is impossible.
    """
    kinds = [str(kind) for kind in config.task.kinds]
    if not kinds or not set(kinds) <= set(known):
        raise UserError(f"task.kinds={kinds}: choose one or more of {', '.join(known)}")
    passed_on = [override for override in overrides if not override.startswith(("task", "hydra", "cache"))]
    arguments = [f"task={task}", *config.task.run, *passed_on, f"cache={config.cache}"]
    struck = run_config(compose_config(arguments))
    check(struck)
    refuse_one_arm(struck, arguments)
    return kinds, arguments


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true. It is checked every half millisecond."""
    while not condition():
        time.sleep(0.0005)


def start(arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Any:
    """Start run.py in its own process group. Returns the new process, which is killed when this process ends. folder:
    the run's folder. environment: further environment variables."""
    path = [str(ROOT / "experiments" / "faults"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return child.start(
        [sys.executable, str(ROOT / "run.py"), *arguments, f"hydra.run.dir={folder}"],
        environment=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))} | dict(environment or {}),
    )


def leave_alone(arguments: Sequence[str], folder: Path) -> None:
    """Do the undisturbed run, with which disturbed ones are compared. Raises RunFailed with a one-line message."""
    done = finish(start(arguments, folder))
    if done.returncode:
        raise RunFailed(f"the run that is left alone failed: {done.stderr.strip()[-300:].removeprefix('error: ')}")


def finish(process: Any) -> Any:
    """Wait until a process that `start` started ends. Returns its exit code and its output."""
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
