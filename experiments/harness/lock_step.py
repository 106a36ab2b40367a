"""Arms in lock step: one process an arm, rollouts one at a time, so that machine noise hits all arms alike."""

import multiprocessing
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from das.engine.build import EngineError
from das.process import die_with_parent
from experiments.harness import resume
from experiments.harness.arm import train_arm
from experiments.run.errors import RunFailed, UserError
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder


def run_arms(
    arms: Mapping[str, DictConfig],
    policy: str,
    folder: Path,
    progress: Progress,
    run_folder: RunFolder,
    start: int = 0,
) -> None:
    """One process an arm. In each step: rollouts one at a time, in rotating order; then all arms train, a core each.

    start: steps already done, whose checkpoints the arms go on from.
    Raises, in one line, RunFailed when an arm fails and UserError when it refuses its input; the others are stopped,
    their files stay.
    """
    spawn = multiprocessing.get_context("spawn")
    with quiet_into(folder / "log.txt"):
        resource_tracker.ensure_running()  # what it says of semaphores that a killed arm left belongs into the log
    pipes: dict[str, Connection] = {}
    processes = {}
    for name, config in arms.items():
        mine, theirs = spawn.Pipe()
        container = OmegaConf.to_container(config, resolve=True)
        process = spawn.Process(
            target=_arm_process,
            args=(container, policy, folder / "arms" / name, folder.name, theirs, start),
            name=f"arm-{name}",
        )
        process.start()
        theirs.close()
        pipes[name], processes[name] = mine, process
    names = list(arms)
    try:
        for step in range(start, progress.steps):
            for name in names:
                expect(pipes[name], "rollout", name, folder)
            if step == start:
                progress.start()
            turn = step % len(names)
            for name in [*names[turn:], *names[:turn]]:
                tell(pipes[name], "go")
                expect(pipes[name], "rolled", name, folder)
            cores = os.cpu_count() or 1
            for first in range(0, len(names), cores):
                together = names[first : first + cores]
                for name in together:
                    tell(pipes[name], "go")
                for name in together:
                    row = expect(pipes[name], "step", name, folder)
                    run_folder.add_metrics(row)
                    progress.step(row)
        for name in names:
            expect(pipes[name], "done", name, folder)
    finally:
        for pipe in pipes.values():
            pipe.close()  # an arm that still waits for its turn ends, and closes its W&B run
        for process in processes.values():
            process.join(timeout=15)
            if process.exitcode is None:
                process.terminate()


def tell(pipe: Connection, message: Any) -> None:
    """Send, if the other end still lives. An arm that is dead cannot take its turn: `expect` reads its last word, or
    says that there is none. A parent that has gone may be ending the comparison for another arm."""
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.send(message)


def expect(pipe: Connection, what: str, name: str, folder: Path) -> Any:
    """The next message of an arm, which must be `what`."""
    log = folder / "arms" / name / "log.txt"
    try:
        kind, value = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise RunFailed(f"arm {name} was killed (out of memory?), its log is {log}{resume.hint(folder)}") from None
    if kind == "refused":
        raise UserError(f"arm {name}: {value}")
    if kind == "error":
        raise RunFailed(f"arm {name}: {value} (log: {log}){resume.hint(folder)}")
    if kind != what:
        raise RunFailed(f"arm {name} answered {kind!r} where {what!r} was due: see {log}")
    return value


def _arm_process(
    container: dict[str, Any], policy: str, folder: Path, group: str, pipe: Connection, start: int
) -> None:
    """Body of an arm's process. Output goes to its log; errors go to the parent as one line."""
    die_with_parent()
    config = OmegaConf.create(container)
    assert isinstance(config, DictConfig)
    with quiet_into(folder / "log.txt"):
        try:
            train_arm(config, policy, folder, group, PipeTurns(pipe), start=start)
            pipe.send(("done", None))
        except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent was interrupted or has gone; it has said so
        except (UserError, EngineError) as error:
            tell(pipe, ("refused", str(error)))
        except Exception as error:
            resume.log_traceback(folder / "log.txt")
            tell(pipe, ("error", resume.in_one_line(error)))


class PipeTurns:
    """An arm's side of the pipe: it waits for its turn, as `run_arms` hands it out."""

    def __init__(self, pipe: Connection):
        self.pipe = pipe
        self.waited_s = 0.0

    def _ask(self, what: str) -> None:
        start = time.perf_counter()
        self.pipe.send((what, None))
        self.pipe.recv()
        self.waited_s += time.perf_counter() - start

    def before_rollout(self) -> None:
        self._ask("rollout")

    def after_rollout(self) -> None:
        self._ask("rolled")

    def after_step(self, row: dict[str, Any]) -> None:
        self.pipe.send(("step", row))
