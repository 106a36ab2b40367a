"""Turn bad input into one clear line and an exit code that is not 0."""

import errno
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from das.cluster.messages import ClusterError
from das.engine.build import EngineError
from das.engine.versions import UnsupportedVersion
from das.native import NativeBuildError
from das.training.checkpoint import CheckpointError
from das.training.errors import TrainingDiverged, WeightSyncError
from experiments.registry import TASKS
from experiments.run.renamed import renamed

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
USER_ERROR, FAILED, INTERRUPTED = 2, 1, 130
_NO_CONFIG = (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError)  # what compose raises
_UNREADABLE = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, IndexError)


class UserError(ValueError):
    """Something that only the user can correct; the message says what to change."""


class RunFailed(RuntimeError):
    """A run that must not be trusted (nothing drafted, weights not synced); the message says why."""


def compose_config(overrides: list[str]) -> DictConfig:
    """The config with these overrides. Raises UserError, in one line, for keys and choices that do not exist."""
    try:
        return compose("config", overrides=overrides)
    except _NO_CONFIG as error:
        raise UserError(config_error_line(error, overrides)) from error


def config_error_line(error: Exception, overrides: list[str]) -> str:
    """What is wrong with a config, in one line."""
    if isinstance(error, UnicodeDecodeError):  # it names no file
        return f"{' '.join(overrides)} chooses a config file that is not UTF-8: {error}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {error}"
    setting = re.search(r"Could not override '(cluster\.\w+)'", str(error))
    if setting and "cluster=ray" not in overrides:  # Hydra would advise a plus sign
        return f"{setting[1]}: only cluster=ray has this setting; give cluster=ray, too"
    return str(error)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a user's file is read and parsed into a UserError that names the file."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (*_UNREADABLE, RecursionError, OverflowError, YAMLError) as error:
        reason = " ".join(str(error).removeprefix(f"{path}: ").split())[:160]
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {reason}") from error


def stop(message: str, code: int) -> None:
    """Print one line and exit."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    sys.exit(code)


@contextmanager
def one_line_errors(resume_hint: Callable[[], str] = str) -> Iterator[None]:
    """Turn errors that a user can act on into one line. Anything else is a bug and keeps its traceback.

    resume_hint: returns what to add to the line about a run that was interrupted.
    """
    try:
        yield
    except (UserError, EngineError, UnsupportedVersion, NativeBuildError, OmegaConfBaseException) as error:
        stop(str(error), USER_ERROR)
    except (RunFailed, ClusterError, WeightSyncError, TrainingDiverged, CheckpointError) as error:
        stop(str(error), FAILED)
    except KeyboardInterrupt:
        stop(f"interrupted; the finished steps are in the run folder{resume_hint()}", INTERRUPTED)
    except OSError as error:
        if error.errno is None:  # transformers and huggingface_hub raise it where a model cannot be loaded
            stop(str(error)[:300], USER_ERROR)
        if error.errno != errno.ENOSPC:
            raise
        stop(f"disk full while writing {error.filename or 'results'}: free some space or set out=OTHER_DIR", FAILED)


def explain_config_error(arguments: list[str]) -> None:
    """Compose the config before Hydra does, to report a bad key or choice in one line instead of Hydra's several.

    arguments: the command line. A command line with flags (-m, --help, --cfg ...) is left to Hydra.
    """
    if any(argument.startswith("-") for argument in arguments):
        return
    task = next((argument.removeprefix("task=") for argument in arguments if argument.startswith("task=")), "compare")
    if task not in TASKS:
        stop(
            f"unknown task {task!r}: choose one of {', '.join(TASKS)}; python run.py --help describes them", USER_ERROR
        )
    for argument in arguments:
        if new_name := renamed(argument):
            stop(f"{argument}: this setting is now called {new_name}", USER_ERROR)
    try:
        with initialize_config_dir(str(CONFIGS), version_base=None):
            config = compose("config", overrides=arguments, return_hydra_config=True)
        if config.resume is not None and not Path(str(config.resume)).is_dir():  # Hydra would create it
            stop(f"resume={config.resume}: no such folder", USER_ERROR)
        folder = Path(config.hydra.run.dir)
    except _NO_CONFIG as error:
        stop(config_error_line(error, arguments), USER_ERROR)
    _require_writable(folder)


def _require_writable(folder: Path) -> None:
    """Stop unless a run's folder can be created, or is there and can be written. Hydra would stop with a traceback."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(f"{folder} cannot be created ({error.strerror}): set out=OTHER_DIR", USER_ERROR)
    if not os.access(folder.parent, os.W_OK) or (folder.exists() and not folder.is_dir()):
        stop(f"{folder} is not a folder that can be written: set out=OTHER_DIR", USER_ERROR)
