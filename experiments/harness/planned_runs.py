"""The runs that an experiment needs: planned from configs/experiment, made once, kept, and written up as a section."""

import hashlib
import importlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from analysis.report import Section
from experiments.harness import resume
from experiments.run import child
from experiments.run.errors import CONFIGS, UserError, compose_config
from experiments.run.progress import Progress
from experiments.run.run_folder import write_text

ROOT = CONFIGS.parent


PROFILES = ("small", "smoke", "paper")


OURS = ("task", "experiment", "profile", "paper", "hydra", "out", "resume")  # not handed on to the runs


@dataclass(frozen=True)
class Run:
    """One command. minutes: expected in profile small on 2 cores."""

    overrides: tuple[str, ...]
    minutes: float

    def folder(self, kept: Path) -> Path:
        """Where it is kept: the task and a digest of the overrides."""
        task = next((o.split("=", 1)[1] for o in self.overrides if o.startswith("task=")), "compare")
        digest = hashlib.sha256("\0".join(self.overrides).encode()).hexdigest()[:10]
        return kept / "runs" / f"{task}-{digest}"

    def command(self) -> str:
        """As a user would type it."""
        return "python run.py " + shlex.join(self.overrides)

    def finished(self, kept: Path) -> bool:
        return (self.folder(kept) / "result.json").exists()


@dataclass(frozen=True)
class Experiment:
    """A file of configs/experiment, in a profile."""

    name: str
    title: str
    about: str  # what is compared, where the section's module does not say so itself
    section: str  # module of analysis/sections
    runs: Mapping[str, Run]


def names() -> list[str]:
    """Every experiment that belongs to the report, figures first."""
    found = [path.stem for path in (CONFIGS / "experiment").glob("*.yaml")]
    figures = sorted((n for n in found if n.startswith("das_fig")), key=lambda name: int(name.removeprefix("das_fig")))
    return [*figures, *sorted(name for name in found if name.startswith("ablation_"))]


def load(name: str, profile: str, own: Sequence[str]) -> Experiment:
    """The experiment `name`; `own`: overrides of the user's, for every run. Raises UserError in one line."""
    if profile not in PROFILES:
        raise UserError(f"profile={profile}: choose {', '.join(PROFILES)}")
    path = CONFIGS / "experiment" / f"{name}.yaml"
    if not path.exists():
        raise UserError(f"experiment={name} is not in configs/experiment")
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    body: dict[str, Any] = config["experiment"]
    runs = {}
    for label, overrides in body["runs"].items():
        setting = [f"setting={body['setting']}_{profile}"] if body["setting"] else []
        whole = (*setting, *overrides["every"], *overrides.get(profile, []), *own)
        runs[str(label)] = Run(whole, body["minutes"] / len(body["runs"]))
    return Experiment(name, body["title"], body.get("about", ""), body.get("section", name), runs)


def handed_on(overrides: Sequence[str]) -> list[str]:
    """The user's overrides that concern the runs."""
    return [o for o in overrides if o.split("=", 1)[0].split(".", 1)[0].split("@", 1)[0] not in OURS]


def check(experiments: Sequence[Experiment]) -> None:
    """Compose every run's config before the first begins. Raises UserError."""
    for experiment in experiments:
        for planned in experiment.runs.values():
            compose_config(list(planned.overrides))


def place(experiment: Experiment, profile: str) -> str:
    """Folder of an experiment's section, in the folder of all."""
    return experiment.name if profile == "small" else f"{experiment.name}_{profile}"


def make(runs: Sequence[Run], kept: Path, progress: Progress) -> dict[Run, str]:
    """Make the runs that are not there yet, each a process of its own. Returns the failed ones with the reason."""
    todo = [planned for planned in dict.fromkeys(runs) if not planned.finished(kept)]
    there = len(dict.fromkeys(runs)) - len(todo)
    if there:
        progress.note(f"{there} of {there + len(todo)} runs are there already")
    failed = {}
    expected = spent = 0.0
    for i, planned in enumerate(todo):
        pace = spent / 60 / expected if expected else 1.0
        left = pace * sum(later.minutes for later in todo[i:])
        progress.note(f"[{i + 1}/{len(todo)}] {planned.command()}   (about {left:.0f} min left in all)")
        began = time.perf_counter()
        problem = launch(planned, kept)
        spent += time.perf_counter() - began
        expected += planned.minutes
        if problem:
            failed[planned] = f"{planned.command()}: {problem}"
            progress.note(f"FAILED: {problem}")
    return failed


def launch(planned: Run, kept: Path) -> str:
    """Run it, or go on with it from its checkpoints; its output goes through, indented. Returns "" or what went wrong,
    in a line."""
    folder = planned.folder(kept).absolute()
    resume.hold(folder).close()  # refused where it is being made already
    command = [sys.executable, str(ROOT / "run.py")]
    if resume.hint(folder):
        command.append(f"resume='{folder}'")
    else:
        if compose_config(list(planned.overrides)).task.get("lock_step", True):
            shutil.rmtree(folder)  # arms one by one: the finished ones are kept
            folder.mkdir()
        command += [*planned.overrides, f"hydra.run.dir='{folder}'"]
    last = ""

    def say(line: str) -> None:
        nonlocal last
        print(f"    {line}", flush=True)
        last = line.strip() or last

    began = time.perf_counter()
    code = child.run(command, say)
    if code == 0:
        seconds = time.perf_counter() - began
        write_text(folder / "command.json", json.dumps({"command": planned.command(), "seconds": seconds}))
        return "" if planned.finished(kept) else "it left no result.json"
    return last.removeprefix("error: ") or f"exit code {code}"


def written(experiment: Experiment, kept: Path, profile: str) -> Section:
    """The experiment's section, from what its runs left; figures lie in its own folder."""
    folder = kept / place(experiment, profile)
    folder.mkdir(parents=True, exist_ok=True)
    published = json.loads((ROOT / "experiments" / "papers" / "published.json").read_text())
    module = importlib.import_module(f"analysis.sections.{experiment.section}")
    runs = {label: planned.folder(kept) for label, planned in experiment.runs.items()}
    section: Section = module.section(experiment.title, runs, published, folder)
    differs = section.differs if profile == "small" else ""  # written about that profile
    return replace(section, setting=f"{experiment.about} {section.setting}".strip(), differs=differs)
