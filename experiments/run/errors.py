"""Turn bad input into one clear line and an exit code that is not 0, and end a run at once that is told to end."""

import errno
import os
import signal
import sys
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from das.engine.versions import UnsupportedVersion
from das.general import ranks
from das.general.errors import ClusterError, EngineError, WeightSyncError, reason_of
from das.general.native import NativeBuildError
from rewards.reward import RewardError
from rewards.workers import JudgeError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
USER_ERROR, FAILED, INTERRUPTED, TERMINATED = 2, 1, 130, 143
ENDS: dict[int, tuple[str, int]] = {
    signal.SIGINT: ("interrupted", INTERRUPTED),
    signal.SIGTERM: ("ended by SIGTERM", TERMINATED),
}
GRACE_S = 20.0  # seconds in which a run that is told to end may close its files and its W&B runs
AGAIN_S = 0.05  # seconds until what Python ignored is raised again
_UNREADABLE = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, IndexError)


class UserError(ValueError):
    """Something that only the user can correct; the message says what to change."""


class TrainingDiverged(RuntimeError):
    """A loss or a gradient norm is not finite, so the policy is lost."""


class RunFailed(RuntimeError):
    """A run failed, or its results must not be trusted (for example, nothing was drafted). The message says why."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or its files are not as they were written. The message says which, and why."""


# Errors that end a run, and that no setting causes. Their messages are one line.
FAILURES = (RunFailed, ClusterError, WeightSyncError, TrainingDiverged, CheckpointError, JudgeError)


@contextmanager
def reading(path: Path, key: str = "") -> Iterator[None]:
    """Turn any error that occurs while a user's file is read and parsed into a UserError that names the file.

    key: the setting that named the file; the message begins with it.
    """
    named = f"{key}={path}" if key else str(path)
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{named} does not exist") from None
    except (*_UNREADABLE, RecursionError, OverflowError, YAMLError) as error:
        reason = reason_of(error).removeprefix(f"{path}: ")[:160]
        raise UserError(f"{named} cannot be read: {type(error).__name__}: {reason}") from error


def say(message: str) -> None:
    """Print the message as one error line."""
    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


def stop(message: str, code: int) -> None:
    """Print the message as one error line, and exit with this code."""
    say(message)
    sys.exit(code)


class Terminated(BaseException):
    """The process got SIGTERM, as from a batch system whose time is over."""


def kill_children() -> None:
    """Kill all processes that this one has started, and those that they have started."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def one_line_errors(resume_hint: Callable[[], str] = str, folder: Path | None = None) -> Iterator[None]:
    """Turn errors that a user can act on into one line. Anything else is a bug and keeps its traceback.

    resume_hint: returns a text to append to the line about a run that was interrupted. folder: that of the run.
    """
    try:
        with _ending(resume_hint):
            yield
    except (UserError, EngineError, UnsupportedVersion, NativeBuildError, OmegaConfBaseException, RewardError) as error:
        stop(str(error), USER_ERROR)
    except FAILURES as error:
        stop(str(error), FAILED)
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        kinds = ("folder", "file") if isinstance(error, IsADirectoryError) else ("file", "folder")
        stop(f"{error.filename} is a {kinds[0]} where a {kinds[1]} is expected: move it away", USER_ERROR)
    except OSError as error:
        if folder is not None and (lost := _lost(error, folder)):
            stop(f"{lost} was moved or deleted while its run went on: the run is lost", FAILED)
        if error.errno is None:  # transformers and huggingface_hub raise it where a model cannot be loaded
            stop(reason_of(error)[:300], USER_ERROR)
        if error.errno != errno.ENOSPC:
            raise
        stop(f"{failure_line(error)}: free some space or set out=OTHER_DIR", FAILED)


@contextmanager
def _ending(resume_hint: Callable[[], str]) -> Iterator[None]:
    """Inside the `with` block SIGTERM and Ctrl-C raise Terminated and KeyboardInterrupt. Whatever that becomes on its
    way out (Ray makes a SystemError of it), the process then ends with one line, and kills what it has started.

    If the process is still in the block GRACE_S later, or is told a second time, it ends at once.
    """
    ending = _Ending(resume_hint)
    # Shells let background jobs ignore Ctrl-C.
    heard = [number for number in ENDS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, ending.told) for number in heard}
    unraisable, sys.unraisablehook = sys.unraisablehook, ending.swallowed
    try:
        yield
    except BaseException as error:
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else ending.number
        if number is None:
            raise
        ending.say(number)
        sys.exit(ENDS[number][1])
    finally:
        sys.unraisablehook = unraisable
        for number, handler in before.items():
            signal.signal(number, handler)
        ending.patience.cancel()


class _Ending:
    """How a process ends that is told to."""

    def __init__(self, resume_hint: Callable[[], str]) -> None:
        self.number: int | None = None  # of the signal
        self.patience = threading.Timer(GRACE_S, self._at_once)
        self.patience.daemon = True
        self._hint = resume_hint
        self._said = threading.Lock()

    def told(self, number: int, frame: object) -> None:
        """Handle a signal."""
        if self.number is not None:
            self._at_once()
        self.number = number
        self.patience.start()
        self._raise()

    def _raise(self, *signalled: Any) -> None:
        raise KeyboardInterrupt if self.number == signal.SIGINT else Terminated

    def swallowed(self, error: Any) -> None:
        """Takes the place of sys.unraisablehook: raise again what was raised where Python must ignore it, as in a
        fork."""
        if self.number is None or not issubclass(error.exc_type, KeyboardInterrupt | Terminated):
            sys.__unraisablehook__(error)
            return
        signal.signal(self.number, self._raise)
        threading.Timer(AGAIN_S, os.kill, [os.getpid(), self.number]).start()

    def say(self, number: int) -> None:
        """Print the line, once, and kill what this process has started."""
        first = self._said.acquire(blocking=False)
        if first and ranks.is_main():  # a launcher hands the signal to all ranks, and one line is enough
            say(f"{ENDS[number][0]}; the finished steps are in the run folder{self._hint()}")
        kill_children()

    def _at_once(self) -> None:
        assert self.number is not None
        self.say(self.number)
        os._exit(ENDS[self.number][1])


def _lost(error: OSError, folder: Path) -> str:
    """Return the folder of the run, or the file in it, that is gone although the run needs it; empty if none is."""
    if not folder.is_dir():
        return str(folder)
    inside = isinstance(error, FileNotFoundError) and Path(str(error.filename)).is_relative_to(folder)
    return str(error.filename) if inside else ""


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
def one_line_failure(log: Path, resume_hint: Callable[[], str]) -> Iterator[None]:
    """Turn an error in a training into one line, which says how to resume. What the user can correct stays as it is.
    The traceback of anything else goes to the log."""
    try:
        yield
    except Exception as error:
        line = as_line(error, log)
        if line is error:
            raise
        raise type(line)(f"{line}{resume_hint()}") from error


def printable(text: str) -> str:
    """Returns the text with control characters written as escapes, so that a file's content cannot steer a terminal.
    Line breaks and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
