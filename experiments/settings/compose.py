"""Compose a config from overrides. An error is one line, which says what is wrong and what to change."""

import os
import re
from contextlib import suppress
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import setup_globals
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.registry import TASKS
from experiments.run.errors import CONFIGS, USER_ERROR, UserError, say, stop
from experiments.settings.config import run_config

_NO_CONFIG = (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError)  # what compose raises
SWEEP = {"-m", "--multirun"}
_CHOICE = re.compile(
    r"Could not find '(.+)/([^/']+)'\s+Available options in '[^']*':\s+(.*?)\s+Config search", re.DOTALL
)


def compose_config(overrides: list[str]) -> DictConfig:
    """Return the config with these overrides. Raises UserError with a one-line message if a key or a choice is
    unknown."""
    try:
        return compose("config", overrides=overrides)
    except _NO_CONFIG as error:
        raise UserError(config_error_line(error, overrides)) from error


def config_error_line(error: Exception, overrides: list[str]) -> str:
    """Return one line that says what is wrong with a config."""
    if isinstance(error, UnicodeDecodeError):  # it names no file
        return f"{' '.join(overrides)} chooses a config file that is not UTF-8: {error}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {error}"
    if choice := _CHOICE.search(str(error)):
        return f"{choice[1]}={choice[2]}: choose {', '.join(choice[3].split())}"
    if unknown := re.search(r"Could not override '([\w.]+)'", str(error)):
        return _unknown_key(unknown[1], str(error), overrides)
    return str(error)


def _unknown_key(key: str, hydra_line: str, overrides: list[str]) -> str:
    """Return an error line for a key that the config lacks. Hydra's own line advises a plus sign before the key.

    hydra_line: Hydra's own error line. It is returned only if its advice helps: if the config with a plus sign is
    valid.
    """
    added = [f"+{override}" if override.split("=")[0] == key else override for override in overrides]
    try:
        config = compose("config", overrides=added)
        run_config(config)
    except UserError as refusal:
        return str(refusal)
    except _NO_CONFIG as error:
        return config_error_line(error, added) if added != overrides else hydra_line
    if key.startswith("arm."):
        return (
            f"{key}: arm={config.arm.name} has no such setting; choose the arm that has it, or in a comparison give "
            f"+vary.{key}=[VALUE], which is for the arm das, or else for the last one"
        )
    return hydra_line


def explain_config_error(arguments: list[str]) -> None:
    """Compose the config before Hydra does, to report a bad key or choice by one line instead of Hydra's several lines.
    Of a sweep, check the settings of all jobs before the first one begins.

    arguments: the command line. One with other flags than -m (--help, --cfg ...) is left to Hydra.
    """
    flags = {argument for argument in arguments if argument.startswith("-")}
    overrides = [argument for argument in arguments if argument not in flags]
    if flags - SWEEP:
        return
    with initialize_config_dir(str(CONFIGS), version_base=None):
        try:
            if flags:
                setup_globals()  # the folder of a sweep has the time in its name
                folder = _sweep_folder(overrides)
            else:
                folder = _composed(overrides).hydra.run.dir
        except UserError as error:
            stop(str(error), USER_ERROR)
        except _NO_CONFIG as error:
            stop(config_error_line(error, overrides), USER_ERROR)
    _require_writable(Path(folder))


def _composed(overrides: list[str]) -> DictConfig:
    """Return the config with these overrides, with Hydra's own part. Raises UserError with a one-line message."""
    task = next((override.removeprefix("task=") for override in overrides if override.startswith("task=")), "compare")
    if task not in TASKS:
        raise UserError(f"unknown task {task!r}: choose one of {', '.join(TASKS)}; python run.py --help describes them")
    if refusal := _no_choice(overrides):
        raise UserError(refusal)
    try:
        config = compose("config", overrides=overrides, return_hydra_config=True)
    except _NO_CONFIG as error:
        raise UserError(config_error_line(error, overrides)) from error
    if (resumed := config.get("resume")) is not None and not Path(str(resumed)).is_dir():  # Hydra would create it
        raise UserError(f"resume={resumed}: no such folder")
    return config


def _sweep_folder(overrides: list[str]) -> str:
    """Return the folder of a sweep. Exits with one line for each of its jobs whose settings are wrong."""
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    (jobs,) = BasicSweeper.split_arguments(parser.parse_overrides(overrides), None)
    folder, wrong = "", []
    for number, job in enumerate(jobs):
        try:
            config = _composed(job)
            folder = config.hydra.sweep.dir
            with open_dict(config):
                del config.hydra
            run_config(config)
        except (UserError, *_NO_CONFIG) as error:
            line = str(error) if isinstance(error, UserError) else config_error_line(error, job)
            wrong.append(f"job {number} ({' '.join(job)}): {line}")
    for line in wrong[:-1]:
        say(line)
    if wrong:
        stop(f"{wrong[-1]}; no job of the sweep was started", USER_ERROR)
    return folder


def _no_choice(arguments: list[str]) -> str:
    """Return an error line for a group that is given null, a number, a truth value or a group of settings, where Hydra
    wants the name of one of its files. Empty if there is none."""
    parser = OverridesParser.create()
    for argument in arguments:
        group = argument.lstrip("+").partition("=")[0]
        if not (CONFIGS / group).is_dir():
            continue
        with suppress(HydraException):  # Hydra itself says what it cannot parse
            value = parser.parse_override(argument).value()
            if all(isinstance(name, str) for name in (value if isinstance(value, list) else [value])):
                continue
            choices = ", ".join(sorted(path.stem for path in (CONFIGS / group).glob("*.yaml")))
            without = " (leave it out for none)" if group in ("setting", "experiment") else ""
            return f"{argument}: choose {choices}{without}"
    return ""


def _require_writable(folder: Path) -> None:
    """Exit with one line unless the run's folder can be created or written. Hydra would exit with a traceback."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(f"{folder} cannot be created ({error.strerror}): set out=OTHER_DIR", USER_ERROR)
    if not os.access(folder.parent, os.W_OK) or (folder.exists() and not folder.is_dir()):
        stop(f"{folder} is not a folder that can be written: set out=OTHER_DIR", USER_ERROR)
