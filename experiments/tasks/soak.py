"""task=soak: train for hours and measure the processes after each step. At the end no process or file may remain."""

import os
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from analysis import soak as soak_analysis
from experiments.harness.failures import expect, log_of, reporting
from experiments.harness.policies import policy_directory
from experiments.harness.train_arm import ArmRun, train_arm
from experiments.harness.validate import check
from experiments.run.errors import UserError
from experiments.run.files import add_rows
from experiments.run.processes import spawned
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.config import RunConfig
from experiments.training.barrier import Barrier

ENDLESS = 10**7  # training steps, the largest number allowed; the clock ends the training before
NAME = "soak"  # of its arm
ROLES = ("rewards.forkserver", "rewards.judge", "rewards.maths", "wandb-core", "resource_tracker")


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Train the arm for `task.minutes`. Writes soak.jsonl (a row for each step), result.json and soak.png."""
    config = replace(config, trainer=replace(config.trainer, max_steps=ENDLESS))  # the clock ends the training
    minutes, warm_up_minutes = config.task.minutes, config.task.warm_up_minutes
    if warm_up_minutes >= minutes:
        raise UserError(f"task.warm_up_minutes={warm_up_minutes}: must be below task.minutes")
    check(config)
    progress = Progress(0)
    path = Path(folder)
    run_folder = RunFolder(path, config.resolved)
    policy = policy_directory(config, progress.note)
    progress.note(f"{minutes} minutes of {config.arm.name}; samples in {path / 'soak.jsonl'}")
    scratch = path / "scratch"  # for all temporary files, so that remaining ones are found
    scratch.mkdir()
    os.environ["TMPDIR"] = str(scratch.resolve())
    processes, shared = watch(config, policy, path)
    leaked = {
        "processes": [role for process, role in processes.items() if process.is_running()],
        "files": sorted(str(file.relative_to(path)) for file in scratch.rglob("*"))
        + sorted(str(file.relative_to(path)) for file in path.rglob("*.tmp"))
        + sorted(str(file) for file in Path("/dev/shm").iterdir() if file.lstat().st_ino in shared),
    }
    result = soak_analysis.evaluate(path, warm_up_minutes) | {"leaked": leaked}
    soak_analysis.soak_figure(path, warm_up_minutes, path / "soak.png")
    progress.note(soak_analysis.summary_text(result))
    progress.note(f"result: {run_folder.write_result(result)}")


def watch(config: RunConfig, policy: str, path: Path) -> tuple[dict[psutil.Process, str], set[int]]:
    """Train in a child process, and measure it and its children after each step. Raises the errors of `expect`.

    Returns the role of every process that was seen, and the inodes of the shared memory that these processes mapped.
    """
    child, ours = spawned(_train, config, policy, path, name="soak", daemon=False)
    assert child.pid is not None
    trainer = psutil.Process(child.pid)
    seen: dict[psutil.Process, str] = {}
    shared: set[int] = set()
    began = time.perf_counter()
    while row := expect(ours, "step", NAME, path):
        kept = {key: row[key] for key in ("step", "step_s", "rollout_s", "tokens", "passes", "history_tokens")}
        minutes = (time.perf_counter() - began) / 60
        add_rows(path / "soak.jsonl", [{"minutes": minutes, **kept, **sample(trainer, seen)}])
        for process in seen:
            shared |= shared_inodes(process)
    child.join(timeout=60)
    return seen, shared


def shared_inodes(process: psutil.Process) -> set[int]:
    """Return the inodes of the files in /dev/shm that a process has mapped. They identify the files better than names,
    because the names of semaphores change."""
    with suppress(OSError):  # the process has ended
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        return {int(line.split()[4]) for line in maps if " /dev/shm/" in line}
    return set()


def sample(trainer: psutil.Process, seen: dict[psutil.Process, str]) -> dict[str, Any]:
    """Measure the trainer and all its descendants: memory by role (MiB), open files, processes, CPU seconds.

    The CPU seconds include children that have ended. seen: process -> role; new processes are added to it.
    """
    memory: dict[str, float] = {}
    anonymous: dict[str, float] = {}
    cpu_s, files, processes = 0.0, 0, 0
    for process in (trainer, *trainer.children(recursive=True)):
        try:
            with process.oneshot():
                role = seen.get(process) or ("trainer" if process == trainer else role_of(process))
                used, times, opened = process.memory_info(), process.cpu_times(), process.num_fds()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # ended while we looked
        seen[process] = role
        memory[role] = memory.get(role, 0.0) + used.rss / 2**20
        anonymous[role] = anonymous.get(role, 0.0) + (used.rss - used.shared) / 2**20
        cpu_s += times.user + times.system + times.children_user + times.children_system
        files += opened
        processes += 1
    return {
        "resident_mib": memory,
        "anonymous_mib": anonymous,
        "cpu_s": cpu_s,
        "files": files,
        "processes": processes,
    }


def role_of(process: psutil.Process) -> str:
    """Return the role of a process that the trainer started, such as a worker of the judge. Its command line shows the
    role."""
    line = " ".join(process.cmdline())
    return next((role for role in ROLES if role in line), process.name())


def _train(config: RunConfig, policy: str, path: Path, pipe: Connection) -> None:
    """Body of the trainer's process. It sends the row of each finished step through the pipe, and at the end none."""
    from transformers import TrainerCallback, TrainerControl, TrainerState

    class StopInTime(TrainerCallback):
        def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            self.end = time.monotonic() + config.task.minutes * 60

        def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            control.should_training_stop = time.monotonic() > self.end

    log = log_of(NAME, path)
    with reporting(pipe, log):
        barrier = Barrier(lambda row: pipe.send(("step", row)))
        train_arm(ArmRun(config, policy, log.parent, path.name, barrier, [StopInTime()]))
        pipe.send(("step", None))
