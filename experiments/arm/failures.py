"""Report the failure of a training, or of a process of a task, as one line. The traceback goes to the log.

A task and each process that it starts talk over a pipe. The process sends messages (kind, value). If it fails, its last
message is ("refused", message) for bad input, or ("error", message) for anything else.
"""

import errno
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from das.general.errors import EngineError, reason_of
from experiments.arm import resume
from experiments.run.errors import FAILURES, RunFailed, UserError
from experiments.run.progress import quiet_into
from rewards.process import die_with_parent
from rewards.reward import RewardError


def failure_line(error: Exception) -> str:
    """Return one line that says what went wrong."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"disk full while writing {error.filename or 'results'}"
    if isinstance(error, FAILURES):
        return " ".join(str(error).split())
    return f"{type(error).__name__}: {reason_of(error)[:400]}"


def as_line(error: Exception, log: Path) -> Exception:
    """Return an error whose message is one line: UserError or EngineError for what the user can correct, else
    RunFailed. Unless it is one of the former already, the traceback goes to the log, which the line names."""
    if isinstance(error, UserError | EngineError):
        return error
    with suppress(OSError), log.open("a") as file:  # a full disk has no room for it
        traceback.print_exception(error, file=file)
    if isinstance(error, RewardError):
        return UserError(f"{error} (log: {log})")
    return RunFailed(f"{failure_line(error)} (log: {log})")


@contextmanager
def one_line_failure(folder: Path) -> Iterator[None]:
    """Turn an error in the training of the run in `folder` into one line, which says how to resume. What the user can
    correct stays as it is."""
    try:
        yield
    except Exception as error:
        line = as_line(error, folder / "log.txt")
        if line is error:
            raise
        raise type(line)(f"{line}{resume.hint(folder)}") from error


@contextmanager
def reporting(pipe: Connection, log: Path) -> Iterator[None]:
    """Wrap the body of a task's child process. Its output goes to the log. If it fails, the parent gets the error as
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

    If a child has died, the parent learns this from `expect`. If the parent has closed its end, it is ending the task
    because another child failed.
    """
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.send(message)


def log_of(name: str, folder: Path) -> Path:
    """Return the path of the log of the arm `name`. folder: the task's folder."""
    return folder / "arms" / name / "log.txt"


def expect(pipe: Connection, kind: str, name: str, folder: Path, now: Callable[[str], object] | None = None) -> Any:
    """Wait for the next message of an arm's process, which must be of this kind. Returns the value of the message.

    name: the arm's name. folder: the task's folder. now: takes, in words, what the arm does before it sends
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
        raise RunFailed(f"arm {name} was killed (out of memory?), its log is {log}{resume.hint(folder)}") from None
    if received == "refused":
        raise UserError(f"arm {name}: {value}")
    if received == "error":
        raise RunFailed(f"arm {name}: {value}{resume.hint(folder)}")
    if received != kind:
        raise RunFailed(f"arm {name} sent {received!r} instead of {kind!r}: see {log}")
    return value
