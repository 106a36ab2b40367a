"""Turn bad input into one clear line and an exit code that is not 0."""

import errno
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from das import ranks
from das.cluster.messages import ClusterError
from das.engine.versions import UnsupportedVersion
from das.errors import EngineError, WeightSyncError, printable, reason_of
from das.native import NativeBuildError
from rewards.reward import RewardError
from rewards.workers import JudgeError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
USER_ERROR, FAILED, INTERRUPTED, TERMINATED = 2, 1, 130, 143
_UNREADABLE = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, IndexError)


class UserError(ValueError):
    """Something that only the user can correct; the message says what to change."""


class TrainingDiverged(RuntimeError):
    """A loss or a gradient norm is not finite, so the policy is lost."""


class RunFailed(RuntimeError):
    """A run failed, or its results must not be trusted (for example, nothing was drafted). The message says why."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or its files are not as they were written. The message says which, and why."""


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


def stop(message: str, code: int) -> None:
    """Print the message as one error line, and exit with this code."""
    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
    sys.exit(code)


class Terminated(BaseException):
    """The process got SIGTERM, as from a batch system whose time is over."""


def _terminated(number: int, frame: object) -> None:
    raise Terminated


@contextmanager
def one_line_errors(resume_hint: Callable[[], str] = str, folder: Path | None = None) -> Iterator[None]:
    """Turn errors that a user can act on into one line. Anything else is a bug and keeps its traceback.

    resume_hint: returns a text to append to the line about a run that was interrupted. folder: that of the run.
    """
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    except (UserError, EngineError, UnsupportedVersion, NativeBuildError, OmegaConfBaseException, RewardError) as error:
        stop(str(error), USER_ERROR)
    except (RunFailed, ClusterError, WeightSyncError, TrainingDiverged, CheckpointError, JudgeError) as error:
        stop(str(error), FAILED)
    except (KeyboardInterrupt, Terminated) as ended:
        what, code = ("ended by SIGTERM", TERMINATED) if isinstance(ended, Terminated) else ("interrupted", INTERRUPTED)
        if not ranks.is_main():  # a launcher hands the signal to all ranks, and one line is enough
            sys.exit(code)
        stop(f"{what}; the finished steps are in the run folder{resume_hint()}", code)
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
        stop(f"disk full while writing {error.filename or 'results'}: free some space or set out=OTHER_DIR", FAILED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _lost(error: OSError, folder: Path) -> str:
    """Return the folder of the run, or the file in it, that is gone although the run needs it; empty if none is."""
    if not folder.is_dir():
        return str(folder)
    inside = isinstance(error, FileNotFoundError) and Path(str(error.filename)).is_relative_to(folder)
    return str(error.filename) if inside else ""
