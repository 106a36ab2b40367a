"""Arms in lock step: one process for each arm. Rollouts run one at a time, so that machine noise hits all arms alike.

The parent and each arm talk over a pipe. An arm sends (kind, value): ("rollout", None) and waits until it may roll out;
("rolled", None) and waits until it may train; ("step", row) after each step; at the end ("done", None), or
("refused", message) for bad input, or ("error", message). The parent sends "go".
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from das.errors import EngineError
from das.process import die_with_parent, spawned
from experiments.harness import resume
from experiments.harness.config import RunConfig
from experiments.harness.failures import failure_line, log_traceback
from experiments.harness.train_arm import ArmRun, train_arm
from experiments.run.errors import RunFailed, UserError
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

END_S = 15  # seconds an arm gets to end by itself once its pipe is closed


@dataclass(frozen=True)
class Comparison:
    """Arms that are compared."""

    arms: Mapping[str, RunConfig]
    policy: str  # directory or hub id
    run_folder: RunFolder  # arms write into its folder arms/NAME
    start: int = 0  # steps already done; the arms resume from their checkpoints of it

    @property
    def folder(self) -> Path:
        """The comparison's folder."""
        return self.run_folder.path


def run_arms(comparison: Comparison, progress: Progress) -> None:
    """Train all arms. In each step they roll out one at a time, in rotating order, and then train, one arm a core.

    Raises, in one line, RunFailed when an arm fails and UserError when it refuses its input. The other arms are stopped
    then; their files stay.
    """
    folder = comparison.folder
    with quiet_into(folder / "log.txt"):
        resource_tracker.ensure_running()  # its warnings about semaphores of a killed arm belong in the log
    pipes, processes = _start(comparison)
    names = list(comparison.arms)
    try:
        for step in range(comparison.start, progress.steps):
            for name in names:
                expect(pipes[name], "rollout", name, folder)
            if step == comparison.start:
                progress.start()
            first = step % len(names)
            for name in [*names[first:], *names[:first]]:
                tell(pipes[name], "go")
                expect(pipes[name], "rolled", name, folder)
            for row in _train_step(pipes, folder):
                comparison.run_folder.add_metrics(row)
                progress.step(row)
        for name in names:
            expect(pipes[name], "done", name, folder)
    finally:
        for pipe in pipes.values():
            pipe.close()  # an arm that still waits for its turn ends, and closes its W&B run
        for process in processes:
            process.join(timeout=END_S)
            if process.exitcode is None:
                process.terminate()


def _start(comparison: Comparison) -> tuple[dict[str, Connection], list[BaseProcess]]:
    """Start every arm's process. Returns the parent's end of each arm's pipe, and the processes."""
    pipes: dict[str, Connection] = {}
    processes: list[BaseProcess] = []
    for name, config in comparison.arms.items():
        process, pipes[name] = spawned(
            _arm_process,
            name,
            config,
            comparison.policy,
            comparison.folder,
            comparison.start,
            name=f"arm-{name}",
            daemon=False,
        )
        processes.append(process)
    return pipes, processes


def _train_step(pipes: Mapping[str, Connection], folder: Path) -> Iterator[dict[str, Any]]:
    """Let all arms train, as many at a time as there are cores. Yields each arm's row of metrics as it comes."""
    names, cores = list(pipes), os.cpu_count() or 1
    for first in range(0, len(names), cores):
        together = names[first : first + cores]
        for name in together:
            tell(pipes[name], "go")
        for name in together:
            yield expect(pipes[name], "step", name, folder)


def tell(pipe: Connection, message: Any) -> None:
    """Send a message unless the other end is dead.

    The parent learns of a dead arm from `expect`, which reads the arm's last message or finds that there is none. An
    arm's parent may have gone because it ends the comparison for another arm's failure.
    """
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.send(message)


def expect(pipe: Connection, kind: str, name: str, folder: Path) -> Any:
    """The value of an arm's next message, which must be of this kind.

    name: the arm's. folder: the comparison's.
    Raises UserError if the arm refused its input, RunFailed if it failed, was killed, or sent another kind of message.
    """
    log = folder / "arms" / name / "log.txt"
    try:
        received, value = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise RunFailed(f"arm {name} was killed (out of memory?), its log is {log}{resume.hint(folder)}") from None
    if received == "refused":
        raise UserError(f"arm {name}: {value}")
    if received == "error":
        raise RunFailed(f"arm {name}: {value} (log: {log}){resume.hint(folder)}")
    if received != kind:
        raise RunFailed(f"arm {name} sent {received!r} instead of {kind!r}: see {log}")
    return value


def _arm_process(name: str, config: RunConfig, policy: str, comparison: Path, start: int, pipe: Connection) -> None:
    """Body of an arm's process. Its output goes to its log; an error goes to the parent as one line."""
    die_with_parent()
    folder = comparison / "arms" / name
    run = ArmRun(config, policy, folder, comparison.name, PipeBarrier(pipe), start=start)
    log = folder / "log.txt"
    with quiet_into(log):
        try:
            train_arm(run)
            pipe.send(("done", None))
        except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent was interrupted or has gone, and has said why
        except (UserError, EngineError) as error:
            tell(pipe, ("refused", str(error)))
        except Exception as error:
            log_traceback(log)
            tell(pipe, ("error", failure_line(error)))


class PipeBarrier:
    """The barrier of an arm in lock step: it asks over its pipe and waits until `run_arms` lets it go on."""

    def __init__(self, pipe: Connection):
        self.pipe = pipe
        self.waited_s = 0.0

    def _wait_after(self, kind: str) -> None:
        start = time.perf_counter()
        self.pipe.send((kind, None))
        self.pipe.recv()
        self.waited_s += time.perf_counter() - start

    def before_rollout(self) -> None:
        """Wait until no other arm rolls out."""
        self._wait_after("rollout")

    def after_rollout(self) -> None:
        """Wait until all arms have rolled out this step."""
        self._wait_after("rolled")

    def after_step(self, row: dict[str, Any]) -> None:
        """Report the finished step."""
        self.pipe.send(("step", row))
