"""Why a training run failed, in one line; the run's log has the traceback."""

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from das.cluster.messages import ClusterError
from das.errors import EngineDied, EngineError, TrainingDiverged, WeightSyncError
from experiments.harness import resume
from experiments.run.errors import CheckpointError, RunFailed, UserError


def failure_line(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"disk full while writing {error.filename or 'results'}"
    ours = CheckpointError | ClusterError | EngineDied | WeightSyncError | TrainingDiverged | RunFailed | UserError
    if isinstance(error, ours):
        return " ".join(str(error).split())
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


@contextmanager
def one_line_failure(folder: Path) -> Iterator[None]:
    """Turn an error in the training of the run in `folder` into RunFailed: one line that says how to resume."""
    try:
        yield
    except (UserError, EngineError, RunFailed):
        raise
    except Exception as error:
        log_traceback(folder / "log.txt")
        raise RunFailed(f"{failure_line(error)} (log: {folder / 'log.txt'}){resume.hint(folder)}") from error


def log_traceback(log: Path) -> None:
    """Append the traceback of the exception that is being handled."""
    with suppress(OSError), log.open("a") as file:  # a full disk has no room for it
        traceback.print_exc(file=file)
