"""Compose a config from a command line, once. An error is one line, which says what is wrong and what to change."""

import itertools
import json
import multiprocessing
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.run.errors import CONFIGS, FAILED, INTERRUPTED, TERMINATED, UserError, say, stop
from experiments.run.run_folder import add_rows
from experiments.settings.checked import files_of, leaves
from experiments.settings.config import run_config

_WITHOUT = " (leave it out for none)"
_ON_CHOICES = {"setting": _WITHOUT, "experiment": _WITHOUT, "task": "; python run.py --help describes them"}
_NO_CONFIG = (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError)  # what compose raises


def now() -> str:
    """Returns date and time to the millisecond: runs that start in the same second get folders of their own."""
    seconds, milliseconds = divmod(time.time_ns() // 10**6, 1000)
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S', time.localtime(seconds))}.{milliseconds:03d}"


def name_folders(started: str) -> None:
    """Register the functions `either` and `started`, with which configs/config.yaml names a run's folder.

    started: date and time of the start, equal on all ranks.
    """
    OmegaConf.register_new_resolver("either", lambda first, second: first or second, replace=True)
    OmegaConf.register_new_resolver("started", lambda: started, replace=True)


name_folders(now())


@dataclass(frozen=True)
class Composed:
    """A config as Hydra composed it: interpolations are not resolved yet."""

    config: DictConfig
    choices: Mapping[str, str]  # group -> the chosen file of configs/GROUP
    overrides: Sequence[str]  # those of the command line
    folder: Path  # of the run
    sweep: Path  # folder of the sweep

    def changed(self, changes: Mapping[str, Any]) -> DictConfig:
        """Return the config with other settings. changes: by dotted key, or by group: another file of it, or its
        settings. What was set beside the old file of a group is set in the new one, too."""
        config = self.config.copy()
        with open_dict(config):
            for key in sorted(changes, key=lambda key: "." in key):  # groups first
                value = changes[key]
                if key not in self.choices or not isinstance(value, str):
                    OmegaConf.update(config, key, value, merge=False)
                    continue
                own = self._set_beside(key)
                config[key] = group_settings(key, value)
                for name, setting in own.items():
                    OmegaConf.update(config, f"{key}.{name}", setting)
        return config

    def _set_beside(self, group: str) -> dict[str, Any]:
        """Return the settings of a group that do not come from its file."""
        usual = dict(leaves(OmegaConf.to_container(group_settings(group, self.choices[group]))))
        given = {override.lstrip("+").partition("=")[0] for override in self.overrides}
        found = leaves(OmegaConf.to_container(self.config[group]))
        return {
            name: value
            for name, value in found
            if f"{group}.{name}" in given or name not in usual or usual[name] != value
        }


def group_settings(group: str, name: str, key: str = "") -> DictConfig:
    """Read configs/GROUP/NAME.yaml, with the files on which it builds. key: of the setting that names it. Raises
    UserError if there is no such file."""
    if name not in files_of(group):
        raise UserError(f"{key or group}={name}: choose {', '.join(files_of(group))}")
    own: Any = OmegaConf.load(CONFIGS / group / f"{name}.yaml")
    bases = [group_settings(group, base) for base in own.pop("defaults", ()) if base != "_self_"]
    merged: Any = OmegaConf.merge(*bases, own)
    return merged


def composed(overrides: Sequence[str]) -> Composed:
    """Compose the config of a command line. Raises UserError with a one-line message if it is no config."""
    with _hydra():
        _refuse_no_choice(overrides)
        try:
            config = compose("config", overrides=list(map(addable, overrides)), return_hydra_config=True)
            return of_hydra(config, config.hydra, overrides)
        except _NO_CONFIG as error:
            raise UserError(_error_line(error, overrides)) from error


def of_hydra(config: DictConfig, hydra: DictConfig, overrides: Sequence[str]) -> Composed:
    """Take a config as Hydra makes it. hydra: Hydra's own part. Raises OmegaConf's errors."""
    choices = {str(group): file for group, file in hydra.runtime.choices.items() if (CONFIGS / str(group)).is_dir()}
    folder = hydra.run.dir if OmegaConf.is_missing(hydra.runtime, "output_dir") else hydra.runtime.output_dir
    own = config.copy()
    with open_dict(own):
        own.pop("hydra", None)
    return Composed(own, choices, list(overrides), Path(folder), Path(hydra.sweep.dir))


def addable(override: str) -> str:
    """Return an override that adds its setting if configs/ does not have it: whether there is such a one, the class of
    its group says."""
    group, equals, _ = override.partition("=")
    plain = equals and re.fullmatch(r"(?!hydra)[a-z]\w*(\.\w+)*", group)
    return f"++{override}" if plain and not (CONFIGS / group).is_dir() else override


def task_of(overrides: Sequence[str]) -> str:
    """Return the task of a command line."""
    return next((each.removeprefix("task=") for each in overrides if each.startswith("task=")), "compare")


@contextmanager
def _hydra() -> Iterator[None]:
    """Inside the `with` block Hydra composes from configs/, unless it composes from elsewhere already."""
    if GlobalHydra.instance().is_initialized():
        yield
    else:
        with initialize_config_dir(str(CONFIGS), version_base=None):
            yield


def _error_line(error: Exception, overrides: Sequence[str]) -> str:
    """Return one line that says what is wrong with a config."""
    if isinstance(error, UnicodeDecodeError):  # it names no file
        return f"{' '.join(overrides)} chooses a config file that is not UTF-8: {error}"
    if isinstance(error, OverrideParseException):
        return f"{str(error.override).removeprefix('++')}: {error}"
    return str(error)


def _refuse_no_choice(overrides: Sequence[str]) -> None:
    """Refuse a group that is given what is not the name of one of its files. Raises UserError."""
    if any(override.startswith("hydra.searchpath=") for override in overrides):
        return  # the user has a folder of such files, too
    for override in overrides:
        group, _, name = override.lstrip("+").partition("=")
        known = files_of(group) if group and not group.startswith("hydra") else []
        if known and name.strip(" '\"") not in known:
            raise UserError(f"{override}: choose {', '.join(known)}{_ON_CHOICES.get(group, '')}")


# ---- sweeps (python run.py -m): a job that fails ends no other job, and the exit code says so in the end ----

FAILURES = "failed.jsonl"  # in the sweep's folder: a row for each job that failed


def jobs_of(overrides: Sequence[str]) -> list[Composed]:
    """Compose the jobs of a sweep. Raises UserError if the settings of a job are wrong, after a line about each other
    such job."""
    with _hydra():
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        try:
            parsed = {each.get_key_element(): each for each in parser.parse_overrides(list(overrides))}
        except HydraException as error:
            raise UserError(_error_line(error, overrides)) from error
        values = [
            each.sweep_string_iterator() if each.is_sweep_override() else [each.get_value_element_as_str()]
            for each in parsed.values()
        ]
        jobs, wrong = [], []
        for number, chosen in enumerate(itertools.product(*values)):
            job = [f"{key}={value}" for key, value in zip(parsed, chosen, strict=True)]
            try:
                jobs.append(composed(job))
                run_config(jobs[-1].config)
            except UserError as error:
                wrong.append(f"job {number} ({' '.join(job)}): {error}")
    for line in wrong[:-1]:
        say(line)
    if wrong:
        raise UserError(f"{wrong[-1]}; no job of the sweep was started")
    return jobs


@contextmanager
def job_of_sweep() -> Iterator[None]:
    """Wrap a job of Hydra. If it is one of a sweep and fails, note this, and let the sweep go on: Hydra itself would
    end it. A sweep that is told to end does; Ctrl-C reaches jobs in processes of a launcher, too, which leave it to the
    one that started them."""
    config = HydraConfig.get()
    if config.mode is not RunMode.MULTIRUN:
        yield
        return
    if multiprocessing.current_process().name != "MainProcess":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    code: Any = 0
    try:
        yield
    except SystemExit as ended:
        if ended.code in (INTERRUPTED, TERMINATED):
            raise
        code = ended.code
    except Exception:  # a bug
        traceback.print_exc()
        code = FAILED
    if code:
        name = f"job {config.job.num} ({' '.join(overrides_of(config))})"
        say(f"{name} failed, which ends no other job")
        add_rows(Path(config.sweep.dir) / FAILURES, [{"job": name, "code": code}])


def overrides_of(config: Any) -> list[str]:
    """Return the overrides of a job as a user types them. config: Hydra's own."""
    return [override.removeprefix("++") for override in config.overrides.task]


class SweepEnd(Callback):
    """Called by Hydra (configs/config.yaml)."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Name the jobs that failed, and exit with the largest of their codes."""
        path = Path(config.hydra.sweep.dir) / FAILURES
        if path.exists():
            failed = [json.loads(line) for line in path.read_text().splitlines()]
            names, code = ", ".join(each["job"] for each in failed), max(each["code"] for each in failed)
            sys.stdout.flush()
            stop(f"{len(failed)} of the jobs failed: {names}; the others are in {path.parent}", code)
