"""Do the runs that an experiment of configs/experiment plans, keep them, and write the experiment's section.

A run is one command of run.py. The name of its folder is made from its overrides, so that experiments share runs and a
finished run is not repeated. In an override, run:LABEL stands for the folder of an earlier run of the same experiment.
LABEL: EXPERIMENT plans the run of that label in another experiment.
"""

import hashlib
import json
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from analysis import sections
from analysis.report import Section
from das.general.files import write_text
from experiments.arm import resume
from experiments.arm.validate import check_cluster, check_rollouts, refuse_one_arm
from experiments.run.errors import CONFIGS, UserError
from experiments.run.processes import run_command
from experiments.run.progress import Progress
from experiments.settings.compose import composed
from experiments.settings.config import PLAN, run_config

SMOKE_MINUTES = 0.6  # of a run in profile smoke: two steps, and the start of its engines
FILES = ("das", "ablation", "efficient_rollout", "nemo_rl")  # of configs/experiment, in the order of the report
SMOKE = {"maths": ["setting=smoke"], "code": ["setting=smoke", "data=programs", "reward=code"]}
RUN = re.compile(r"run:(\w+)")  # in an override: the folder of another run
OURS = (*PLAN, "task", "hydra", "out", "resume")  # keys that are not passed on to the runs


@dataclass(frozen=True)
class Run:
    """One command of run.py."""

    overrides: tuple[str, ...]
    minutes: float = field(compare=False)  # expected duration on 2 cores
    reads: tuple[tuple[str, "Run"], ...] = ()  # (label, run) whose folder an override names

    def folder(self, store: Path) -> Path:
        """The run's folder in `store`. Its name consists of the task and a digest. The digest covers the overrides of
        this run and of the runs in `reads`."""
        task = next((o.split("=", 1)[1] for o in self.overrides if o.startswith("task=")), "compare")
        overrides = [*self.overrides, *(override for _, run in self.reads for override in run.overrides)]
        digest = hashlib.sha256("\0".join(overrides).encode()).hexdigest()[:10]
        return store / "runs" / f"{task}-{digest}"

    def overrides_in(self, store: Path) -> list[str]:
        """Return the overrides of this run. In place of each run:LABEL they have the folder of that run in `store`."""
        folders = {label: str(run.folder(store).absolute()) for label, run in self.reads}
        return [RUN.sub(lambda found: folders[found[1]], override) for override in self.overrides]

    def command(self) -> str:
        """The command of the run as a user would type it."""
        return "python run.py " + shlex.join(self.overrides)

    def finished(self, store: Path) -> bool:
        """Return whether the run in `store` has finished: it has written its result."""
        return (self.folder(store) / "result.json").exists()


@dataclass(frozen=True)
class Experiment:
    """A figure, table or ablation, a row of a file of configs/experiment, with the runs of one profile (small, for
    example)."""

    name: str
    command: str  # what chooses it
    title: str
    about: str  # what is compared; empty if the section's own text says so
    runs: Mapping[str, Run]


def names(*files: str) -> list[str]:
    """List the names of what these files of configs/experiment make, FILE_ROW; of all files if none is named."""
    return [f"{file}_{row}" for file in files or FILES for row in _file(file)["sections"]]


def _file(name: str) -> dict[str, Any]:
    """Return the content of a file of configs/experiment."""
    config: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / "experiment" / f"{name}.yaml"))
    return dict(config["experiment"])


def load(name: str, profile: str, overrides: Sequence[str]) -> Experiment:
    """Read the experiment `name`, FILE_ROW. overrides: the user's overrides, for each of its runs. Raises UserError
    with a one-line message."""
    file = next(file for file in FILES if name.startswith(f"{file}_"))
    content, row = _file(file), name.removeprefix(f"{file}_")
    if row not in content["sections"]:
        raise UserError(f"experiment.only={row}: choose one of {', '.join(content['sections'])}")
    body = content | content["sections"][row]
    setting = [] if body["setting"] is None else [f"setting={body['setting']}_{profile}"]
    if profile == "smoke" and setting:
        setting = SMOKE[body["setting"]]
    share = body.get("minutes", 0.0) / len(body["runs"])  # minutes of a run whose plan names none
    runs: dict[str, Run] = {}
    for label, planned in body["runs"].items():
        if isinstance(planned, str):
            runs[label] = load(planned, profile, overrides).runs[label]
            continue
        every, further = (planned.get(key, body.get(key, [])) for key in ("every", profile))
        own = (*setting, *every, *further, *overrides)
        reads = dict.fromkeys(found for override in own for found in RUN.findall(override))
        minutes = SMOKE_MINUTES if profile == "smoke" else planned.get("minutes", share)
        runs[str(label)] = Run(own, minutes, tuple((name, runs[name]) for name in reads))
    command = f"experiment={file} experiment.only={row}"
    return Experiment(name, command, body["title"], body.get("about", ""), runs)


def passed_on(overrides: Sequence[str]) -> list[str]:
    """Return the user's overrides that are passed on to the runs."""
    return [o for o in overrides if o.split("=", 1)[0].split(".", 1)[0].split("@", 1)[0] not in OURS]


def check_runs(experiments: Sequence[Experiment]) -> None:
    """Check the config of every run before the first run begins, except for what needs the results of other runs.

    Raises UserError.
    """
    for experiment in experiments:
        for run in experiment.runs.values():
            try:
                config = run_config(composed(run.overrides).config)
                check_rollouts(config)
                check_cluster(config)
                refuse_one_arm(config, run.overrides)
            except UserError as error:
                raise UserError(f"{run.command()}: {error}") from None


def section_folder(experiment: Experiment, profile: str) -> str:
    """Return the name of the folder that holds an experiment's section. It differs between profiles."""
    return experiment.name if profile == "small" else f"{experiment.name}_{profile}"


def make(runs: Sequence[Run], store: Path, progress: Progress) -> dict[Run, str]:
    """Do the runs that are missing in `store`, each in its own process. Returns failed run -> reason."""
    distinct = list(dict.fromkeys(runs))
    missing = [run for run in distinct if not run.finished(store)]
    if len(missing) < len(distinct):
        progress.note(f"{len(distinct) - len(missing)} of {len(distinct)} runs are finished already")
    failed = {}
    began = time.perf_counter()
    for number, run in enumerate(missing):
        done = sum(other.minutes for other in missing[:number])
        slowdown = (time.perf_counter() - began) / 60 / done if done else 1
        remaining = slowdown * sum(other.minutes for other in missing[number:])
        minutes = max(1, round(remaining))
        progress.note(f"[{number + 1}/{len(missing)}] {run.command()}   (about {minutes} min for all that remain)")
        if reason := _make_one(run, store):
            failed[run] = f"{run.command()}: {reason}"
            progress.note(f"FAILED: {reason}")
    return failed


def _make_one(run: Run, store: Path) -> str:
    """Do a run, or resume it from its checkpoints, and print its output. Returns the reason of a failure, else "".

    Raises UserError if another process is doing this run.
    """
    folder = run.folder(store).absolute()
    one_by_one = not composed(run.overrides).config.task.get("lock_step", True)  # the finished arms are kept
    resume.start_again(folder, unless=lambda: one_by_one or resume.hint(folder))
    last = ""

    def pass_on(line: str) -> None:
        nonlocal last
        print(f"    {line}", flush=True)
        last = line.strip() or last

    began = time.perf_counter()
    code = run_command([sys.executable, *resume.arguments(folder, run.overrides_in(store))], pass_on)
    if code == 0:
        timing = {"command": run.command(), "seconds": time.perf_counter() - began}
        write_text(folder / "command.json", json.dumps(timing))
        return "" if run.finished(store) else "it left no result.json"
    return last.removeprefix("error: ") or f"exit code {code}"


def write_section(experiment: Experiment, store: Path, profile: str) -> Section:
    """Make the experiment's section from the files of its runs, and draw its figures into the section's folder."""
    folder = store / section_folder(experiment, profile)
    folder.mkdir(parents=True, exist_ok=True)
    published = json.loads((CONFIGS.parent / "experiments" / "papers" / "published.json").read_text())
    folders = {label: run.folder(store) for label, run in experiment.runs.items()}
    try:
        section = sections.section(experiment.name, experiment.title, folders, published, folder)
    except (LookupError, OSError, ValueError) as error:  # a run, an arm, a metric or a file is not there, or is damaged
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{experiment.command}: its runs in {store} lack what the figure needs ({reason})") from error
    differs = section.differs if profile == "small" else ""  # this text is about profile small
    return replace(section, setting=f"{experiment.about} {section.setting}".strip(), differs=differs)
