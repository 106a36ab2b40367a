"""task=soak: GRPO steps for hours. What every process of the run holds after each step, and what is left at the end."""

import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig, OmegaConf, open_dict

from analysis import soak as soak_analysis
from das.process import die_with_parent
from das.training.turns import Alone
from experiments.harness import setup
from experiments.harness.arm import train_arm
from experiments.run.errors import RunFailed, UserError
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

FOR_EVER = 10**7  # steps, the most that is allowed: the clock ends the training
ROLES = ("rewards.forkserver", "rewards.judge", "rewards.maths", "wandb-core", "resource_tracker")


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Train `config.arm` for `task.minutes`; write soak.jsonl (a row a step), result.json and soak.png."""
    if config.task.warm_up_minutes >= config.task.minutes:
        raise UserError(f"task.warm_up_minutes={config.task.warm_up_minutes}: must be below task.minutes")
    with open_dict(config):
        config.trainer.max_steps = FOR_EVER
    setup.check(config)
    progress = Progress(0)
    path = Path(folder)
    run_folder = RunFolder(path, config)
    policy = setup.policy_directory(config, progress.note)
    progress.note(f"{config.task.minutes} minutes of {config.arm.name}; samples in {path / 'soak.jsonl'}")
    scratch = path / "scratch"  # where temporary files go, so that a forgotten one shows
    scratch.mkdir()
    os.environ["TMPDIR"] = str(scratch.resolve())
    seen, shared = watch(config, policy, path)
    leaked = {
        "processes": [name for process, name in seen.items() if process.is_running()],
        "files": sorted(str(file.relative_to(path)) for file in scratch.rglob("*"))
        + sorted(str(file.relative_to(path)) for file in path.rglob("*.tmp"))
        + sorted(str(file) for file in Path("/dev/shm").iterdir() if file.lstat().st_ino in shared),
    }
    result = soak_analysis.evaluate(path, config.task.warm_up_minutes) | {"leaked": leaked}
    soak_analysis.soak_figure(path, config.task.warm_up_minutes, path / "soak.png")
    progress.note(soak_analysis.summary_text(result))
    progress.note(f"result: {run_folder.write_result(result)}")


def watch(config: DictConfig, policy: str, path: Path) -> tuple[dict[psutil.Process, str], set[int]]:
    """Train in a process of its own and sample it after each step; returns all processes that were seen, by role, and
    the inodes of shared memory that they had mapped."""
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    child = spawn.Process(
        target=_train, args=(OmegaConf.to_container(config, resolve=True), policy, path / "arm", theirs), name="soak"
    )
    child.start()
    theirs.close()
    assert child.pid is not None
    trainer = psutil.Process(child.pid)
    seen: dict[psutil.Process, str] = {}
    shared: set[int] = set()
    began = time.perf_counter()
    with (path / "soak.jsonl").open("w", buffering=1) as file:
        for row in _rows(mine, path):
            file.write(
                json.dumps({"minutes": (time.perf_counter() - began) / 60, **row, **sample(trainer, seen)}) + "\n"
            )
            for process in seen:
                shared |= shared_inodes(process)
    child.join(timeout=60)
    return seen, shared


def shared_inodes(process: psutil.Process) -> set[int]:
    """Inodes of what a process has mapped from /dev/shm. Not names: a semaphore is opened under another one."""
    with suppress(OSError):  # it has ended
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        return {int(line.split()[4]) for line in maps if " /dev/shm/" in line}
    return set()


def _rows(pipe: Connection, path: Path) -> Iterator[dict[str, Any]]:
    """Numbers of each finished step, until the arm is done. Raises RunFailed when it ends otherwise."""
    while True:
        try:
            row = pipe.recv()
        except EOFError:
            raise RunFailed(f"the trainer ended: see {path / 'arm' / 'log.txt'}") from None
        if row is None:
            return
        yield {key: row[key] for key in ("step", "step_s", "rollout_s", "tokens", "passes", "history_tokens")}


def sample(trainer: psutil.Process, seen: dict[psutil.Process, str]) -> dict[str, Any]:
    """Memory in MiB, open files, processes, CPU seconds (those of reaped children included) of trainer and offspring.

    `seen` is completed by what is met for the first time.
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
    """What a child of the trainer is, from its command line."""
    line = " ".join(process.cmdline())
    return next((role for role in ROLES if role in line), process.name())


def _train(container: dict[str, Any], policy: str, folder: Path, pipe: Connection) -> None:
    """Body of the trainer's process."""
    from transformers import TrainerCallback, TrainerControl, TrainerState

    config = OmegaConf.create(container)
    assert isinstance(config, DictConfig)

    class StopInTime(TrainerCallback):
        def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            self.end = time.monotonic() + config.task.minutes * 60

        def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            control.should_training_stop = time.monotonic() > self.end

    die_with_parent()
    with quiet_into(folder / "log.txt"):
        train_arm(config, policy, folder, folder.parent.name, Alone(pipe.send), [StopInTime()])
    pipe.send(None)
