"""Compose a config from overrides. An error is one line, which says what is wrong and what to change."""

import os
import re
from contextlib import suppress
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.registry import TASKS
from experiments.run.errors import CONFIGS, USER_ERROR, UserError, stop
from experiments.settings.config import run_config

_NO_CONFIG = (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError)  # what compose raises
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

    arguments: the command line. A command line with flags (-m, --help, --cfg ...) is left to Hydra.
    """
    if any(argument.startswith("-") for argument in arguments):
        return
    task = next((argument.removeprefix("task=") for argument in arguments if argument.startswith("task=")), "compare")
    if task not in TASKS:
        stop(
            f"unknown task {task!r}: choose one of {', '.join(TASKS)}; python run.py --help describes them", USER_ERROR
        )
    if refusal := _no_choice(arguments):
        stop(refusal, USER_ERROR)
    with initialize_config_dir(str(CONFIGS), version_base=None):
        try:
            config = compose("config", overrides=arguments, return_hydra_config=True)
            folder = Path(config.hydra.run.dir)
        except _NO_CONFIG as error:
            stop(config_error_line(error, arguments), USER_ERROR)
    if (resumed := config.get("resume")) is not None and not Path(str(resumed)).is_dir():  # Hydra would create it
        stop(f"resume={resumed}: no such folder", USER_ERROR)
    _require_writable(folder)


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
