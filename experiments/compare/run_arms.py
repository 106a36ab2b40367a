"""Train the arms of a comparison.

In lock step, each arm has a process. Rollouts run one at a time, so that noise hits all arms equally. The parent and
each arm talk over a pipe, in messages (kind, value). While an arm starts, it sends ("now", what it does). Then it sends
("rollout", None) and waits until it may roll out; then it sends ("rolled", None) and waits until it may train; after
each step it sends ("step", row), and at the end ("done", None). The parent sends "go" to let an arm continue. If an arm
fails, its last message is ("refused", message) for bad input, or ("error", message) for anything else.

One by one, each arm is a run of task=train with all devices, for policies that fill the devices. The comparison reads
the arms' folders. An arm that has finished there with the same settings is not run again, so the user may also run arms
by hand, on several machines.
"""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from analysis import read
from das.general.side_output import listen_to_stages
from experiments.arm.data import is_recorded
from experiments.arm.resume import arguments, hint, interleaved, set_rows, start_again
from experiments.arm.train_arm import ArmRun, train_arm
from experiments.run.errors import RunFailed, UserError, as_line
from experiments.run.processes import run_command, spawned
from experiments.run.progress import Barrier, Progress, quiet_into
from experiments.run.run_folder import add_rows
from experiments.settings.config import METHOD, WORK, RunConfig
from rewards.process import die_with_parent

WEIGHTS = "first_arm.safetensors"  # file in the comparison's folder, while a comparison with task.train_once runs
END_S = 15  # seconds that an arm has to end by itself after its pipe is closed


@dataclass(frozen=True)
class Comparison:
    """A comparison, and its arms, which are checked."""

    config: RunConfig
    arms: Mapping[str, RunConfig]
    overrides: Mapping[str, Sequence[str]]  # that train each arm alone
    folder: Path

    @property
    def trains(self) -> bool:
        """True unless nobody trains."""
        return bool(self.config.task.train) and not is_recorded(self.config)

    @property
    def folders(self) -> dict[str, Path]:
        """Each arm's folder."""
        return {name: self.folder / "arms" / name for name in self.arms}


def run_in_lock_step(comparison: Comparison, policy: str, start: int, progress: Progress) -> None:
    """Train all arms. In each step they roll out one at a time, and then train, one arm on each core. Each step begins
    with another arm, because an arm that trains beside nobody takes a fifth less time. With `task.train_once` only the
    first arm trains, alone, and then the others take its weights.

    policy: of all arms, a directory or hub id. start: steps that are done; the arms resume from their checkpoints.
    Raises RunFailed if an arm fails, and UserError if it refuses its input, both with a one-line message. The other
    arms are then stopped, and their files stay.
    """
    folder = comparison.folder
    with quiet_into(folder / "log.txt"):
        resource_tracker.ensure_running()  # started here, so that its warnings about a killed arm go to the log
    names, pipes, processes = list(comparison.arms), dict[str, Connection](), list[BaseProcess]()
    for name in names:
        process, pipes[name] = spawned(_arm_process, name, comparison, policy, start, name=f"arm-{name}")
        processes.append(process)
    try:
        for step in range(start, progress.steps):
            with progress.starting(names[0], folder / "arms") if step == start else nullcontext():
                for name in names:
                    expect(pipes[name], "rollout", name, folder, progress.now)
            if step == start:
                progress.start()
            first = step % len(names)  # another one begins in each step
            turns = [*names[first:], *names[:first]]
            for name in turns:
                tell(pipes[name], "go")
                expect(pipes[name], "rolled", name, folder)
            for row in _train_step(pipes, turns, comparison):
                add_rows(folder / "metrics.jsonl", [row])
                progress.step(row)
        for name in names:
            expect(pipes[name], "done", name, folder, progress.now)  # a run that had ended sends no "rollout"
    finally:
        for pipe in pipes.values():
            pipe.close()  # an arm that still waits for its turn ends, and closes its W&B run
        for process in processes:
            process.join(timeout=END_S)
            if process.exitcode is None:
                process.terminate()
        (folder / WEIGHTS).unlink(missing_ok=True)


def _train_step(
    pipes: Mapping[str, Connection], turns: Sequence[str], comparison: Comparison
) -> Iterator[dict[str, Any]]:
    """Let all arms train in these turns, as many at a time as there are cores. Yields each arm's row of metrics as it
    comes.

    With `task.train_once` the first arm of the comparison goes first, because the other arms need its weights.
    """
    cores, folder = os.cpu_count() or 1, comparison.folder
    alone = list(pipes)[:1] if comparison.config.task.train_once else []
    others = [name for name in turns if name not in alone]
    for together in (alone, *(others[first : first + cores] for first in range(0, len(others), cores))):
        for name in together:
            tell(pipes[name], "go")
        for name in together:
            yield expect(pipes[name], "step", name, folder)


def _arm_process(name: str, comparison: Comparison, policy: str, start: int, pipe: Connection) -> None:
    """Body of the process of the arm `name`."""
    log, once = log_of(name, comparison.folder), comparison.config.task.train_once
    run = ArmRun(
        comparison.arms[name],
        policy,
        log.parent,
        comparison.folder.name,
        PipeBarrier(pipe),
        start=start,
        weights=comparison.folder / WEIGHTS if once else None,
        trains=comparison.trains and (not once or name == next(iter(comparison.arms))),
    )
    with reporting(pipe, log):
        listen_to_stages(lambda what: pipe.send(("now", what)))  # until it may roll out (PipeBarrier)
        train_arm(run)
        pipe.send(("done", None))


@contextmanager
def reporting(pipe: Connection, log: Path) -> Iterator[None]:
    """Wrap the body of an arm's process. Its output goes to the log. If it fails, the parent gets the error as
    one line."""
    die_with_parent()
    with quiet_into(log):
        try:
            yield
        except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent was interrupted or has gone, and has said why
        except Exception as error:
            line = as_line(error, log)
            tell(pipe, ("error" if isinstance(line, RunFailed) else "refused", str(line)))


def tell(pipe: Connection, message: Any) -> None:
    """Send a message. Does nothing if the process at the other end has died.

    If an arm has died, the parent learns this from `expect`. If the parent has closed its end, it is ending the
    comparison because another arm failed.
    """
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.send(message)


def log_of(name: str, folder: Path) -> Path:
    """Return the path of the log of the arm `name`. folder: the comparison's."""
    return folder / "arms" / name / "log.txt"


def expect(pipe: Connection, kind: str, name: str, folder: Path, now: Callable[[str], object] | None = None) -> Any:
    """Wait for the next message of an arm's process, which must be of this kind. Returns the value of the message.

    name: the arm's name. folder: the comparison's. now: takes, in words, what the arm does before it sends
    that message.
    Raises UserError if the arm refused its input, RunFailed if it failed, was killed, or sent another kind of message.
    """
    log = log_of(name, folder)
    try:
        received, value = pipe.recv()
        while received == "now" and now is not None:
            now(f"{name} {value}")
            received, value = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise RunFailed(f"arm {name} was killed (out of memory?), its log is {log}{hint(folder)}") from None
    if received == "refused":
        raise UserError(f"arm {name}: {value}")
    if received == "error":
        raise RunFailed(f"arm {name}: {value}{hint(folder)}")
    if received != kind:
        raise RunFailed(f"arm {name} sent {received!r} instead of {kind!r}: see {log}")
    return value


class PipeBarrier(Barrier):
    """The barrier of an arm in lock step: the arm asks over its pipe, and waits until it may go on."""

    def __init__(self, pipe: Connection):
        super().__init__(lambda row: pipe.send(("step", row)))
        self.pipe = pipe

    def _wait_after(self, kind: str) -> None:
        listen_to_stages(None)
        start = time.perf_counter()
        self.pipe.send((kind, None))
        self.pipe.recv()
        self.waited_s += time.perf_counter() - start

    def before_rollout(self) -> None:
        self._wait_after("rollout")

    def after_rollout(self) -> None:
        self._wait_after("rolled")


# ---- one by one ----


def run_one_by_one(comparison: Comparison, progress: Progress) -> None:
    """Run the arms that are not finished in their folders.

    Raises RunFailed with a one-line message if an arm fails, and UserError if a finished arm had other settings.
    """
    for name, path in comparison.folders.items():
        config = comparison.arms[name]
        if finished(path, config):
            progress.note(f"{name} is finished already")
            continue
        progress.note(f"{name}:")
        start_again(path, unless=partial(hint, path))
        command = own_command(config, comparison.overrides[name], path, comparison.folder.name)
        train(config, command, path, progress)
    rows = [read.metrics(path) for path in comparison.folders.values()]
    set_rows(comparison.folder / "metrics.jsonl", interleaved(rows))


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
        code = run_command(command, progress.note, file)
    if code:
        error_lines = [line for line in errors.read_text().splitlines() if line.startswith("error: ")]
        reason = error_lines[0].removeprefix("error: ") if error_lines else f"exit code {code}"
        raise RunFailed(f"arm {config.arm.name}: {reason} (log: {path / 'log.txt'}, {errors})")
