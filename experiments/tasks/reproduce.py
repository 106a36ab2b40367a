"""task=reproduce: reproduce every figure, table and ablation of the papers, and write report.html and report.md, which
show the papers' numbers beside ours.

With paper=das|efficient_rollout|nemo_rl the task only simulates that paper's experiments at the scale of the paper. The
published numbers, with their sources, are in experiments/papers/published.json.
"""

import importlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter

from analysis import read
from analysis.arms import boxed
from analysis.report import Section, Table, claims, markdown, markdown_table, summary, write_page
from das.general.files import write_text
from experiments import planned_runs
from experiments.planned_runs import Experiment, Run
from experiments.run.errors import CONFIGS, RunFailed, UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, meta
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig

PAPERS = {
    "das": "DAS, arXiv 2511.13841",
    "efficient_rollout": "EfficientRollout, arXiv 2606.18967",
    "nemo_rl": "System-integrated speculative decoding (NeMo RL), arXiv 2604.26779",
}
CHAPTERS = ("Figures of DAS", "Ablations", "EfficientRollout", "NeMo RL")  # of planned_runs.FILES
REPLAYED = ": at its own scale, replayed"  # end of the headings of simulated chapters
MINUTES = {"das": 7.0, "efficient_rollout": 1.0, "nemo_rl": 1.0}  # time of a paper's simulation on 2 cores


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Simulate the experiments of one paper, or reproduce everything."""
    if config.paper is None:
        everything(config, composed.overrides, Path(folder))
    else:
        replay(config, config.paper, Path(folder) / config.paper)


def replay(config: RunConfig, paper: str, folder: Path) -> None:
    """Simulate the experiments of one paper. Writes report.md, figures and result.json into `folder`."""
    published = json.loads((CONFIGS.parent / "experiments" / "papers" / "published.json").read_text())
    module = importlib.import_module(f"experiments.papers.{paper}")
    run_folder = RunFolder(folder, config.resolved)
    progress = Progress(0)
    progress.note(f"simulating {PAPERS[paper]}: about {MINUTES[paper]:g} min on 2 cores")
    sections = module.sections(config.task, config.budget, published, folder, progress)
    report = folder / "report.md"
    write_text(report, markdown(PAPERS[paper], module.PREFACE, sections))
    result = {"preface": module.PREFACE, "sections": [asdict(section) for section in sections]}
    write_text(folder.parent / "result.json", json.dumps(result, indent=1))
    run_folder.write_result(result)
    progress.note(f"report: {report}")


def everything(config: RunConfig, overrides: Sequence[str], store: Path) -> None:
    """Do the runs of all experiments in this profile, then the simulations of the papers, then write the report.

    Finished runs are not repeated. Raises RunFailed if a run failed; the report is written before, and names that run.
    """
    profile = str(config.profile)
    passed_on = planned_runs.passed_on(overrides)
    experiments = [planned_runs.load(name, profile, passed_on) for name in planned_runs.names()]
    planned_runs.check_runs(experiments)
    progress = Progress(0)
    began = time.perf_counter()
    runs = [planned for experiment in experiments for planned in experiment.runs.values()]
    replays = {} if profile == "smoke" else replay_runs(config, overrides, progress)
    failed = planned_runs.make([*runs, *replays.values()], store, progress)
    chapters = {
        f"{title}, real engine": sections_of(experiments, file, store, profile, failed)
        for file, title in zip(planned_runs.FILES, CHAPTERS, strict=True)
    }
    for paper, planned in replays.items():
        if planned not in failed:
            chapters[f"{PAPERS[paper]}{REPLAYED}"] = replayed(planned.folder(store), paper, store)
    files = write_report(store, profile, chapters, runs, failed)
    progress.note(f"{(time.perf_counter() - began) / 60:.0f} minutes; report: {files}")
    if failed:
        raise RunFailed(f"{len(failed)} runs failed, first: {next(iter(failed.values()))}")


def replay_runs(config: RunConfig, overrides: Sequence[str], progress: Progress) -> dict[str, Run]:
    """Return paper -> the run that simulates its experiments. Those that need the recorded rollouts are left
    out if these are missing.

    overrides: the user's overrides; the overrides of the task's settings are passed on to the runs.
    """
    settings = [override for override in overrides if override.startswith("task.")]
    runs = {paper: Run(("task=reproduce", f"paper={paper}", *settings), MINUTES[paper]) for paper in PAPERS}
    if not Path(config.task.traces).exists():
        for paper in ("das", "nemo_rl"):
            del runs[paper]
            progress.note(
                f"skipped: the replay of {PAPERS[paper]} needs {config.task.traces}: run task=recordings first"
            )
    return runs


def sections_of(
    experiments: Sequence[Experiment], file: str, store: Path, profile: str, failed: Mapping[Run, str]
) -> list[Section]:
    """Write the sections of the experiments of a file of configs/experiment. If a run failed, its section says so."""
    sections = []
    for experiment in experiments:
        if not experiment.name.startswith(f"{file}_"):
            continue
        reasons = [failed[planned] for planned in experiment.runs.values() if planned in failed]
        if reasons:
            sections.append(Section(experiment.title, f"FAILED: {reasons[0]}"))
            continue
        section = planned_runs.write_section(experiment, store, profile)
        command = f"Command: python run.py {experiment.command}"
        command += f" profile={profile}" * (profile != "small")
        folder = planned_runs.section_folder(experiment, profile)
        figures = [f"{folder}/{figure}" for figure in section.figures]
        sections.append(replace(section, setting=f"{section.setting} {command}", figures=figures))
    return sections


def replayed(folder: Path, paper: str, store: Path) -> list[Section]:
    """Read the sections that the simulation of a paper wrote into result.json in `folder`. store: folder that keeps the
    runs."""
    result = read.result(folder)
    first, *others = TypeAdapter(list[Section]).validate_python(result["sections"])
    first = replace(first, setting=f"{result['preface']} {first.setting}")  # the preface holds for all sections
    figures = folder.relative_to(store) / paper
    return [
        replace(section, figures=[str(figures / figure) for figure in section.figures]) for section in (first, *others)
    ]


def write_report(
    store: Path, profile: str, chapters: Mapping[str, Sequence[Section]], runs: Sequence[Run], failed: Mapping[Run, str]
) -> str:
    """Write report.html and report.md. Returns their paths in words. store: folder that keeps the runs. failed: failed
    run -> the reason."""
    orderings = [(section, o) for sections in chapters.values() for section in sections for o in section.orderings]
    of_claims = claims([o for _, o in orderings])
    head = Table(
        ["figure", *of_claims.header],
        [[section.title, *row] for (section, _), row in zip(orderings, of_claims.rows, strict=True)],
    )
    title = "Reproduction" + (f", profile {profile}" if profile != "small" else "")
    box = [*summary([o for _, o in orderings]), *what_stands_in(chapters, failed)]
    preface = [provenance(store, runs), *(f"FAILED: {reason}" for reason in failed.values())]
    text = markdown(title, "\n\n".join([*box, *preface]), []) + "\n" + markdown_table(head) + "\n"
    for chapter, sections in chapters.items():
        text += "\n" + markdown(chapter, "", sections)
    path = store / ("report" if profile == "small" else f"report_{profile}")
    write_text(path.with_suffix(".md"), text)
    write_page(path.with_suffix(".html"), title, box, preface, head, chapters)
    return f"{path}.html and .md"


def what_stands_in(chapters: Mapping[str, Sequence[Section]], failed: Mapping[Run, str]) -> list[str]:
    """Return lines that say what of the report is simulated, and what never ran."""
    simulated = [name.partition(":")[0] for name in chapters if name.endswith(REPLAYED)]
    left_out = [PAPERS["das"]] if chapters and not any(name.startswith(PAPERS["das"]) for name in chapters) else []
    lines = [
        f"Simulated: {'; '.join(simulated)} at the papers' own scale. Everything else ran on this machine, with a "
        "small policy."
        if simulated
        else "Nothing here is simulated: all of it ran on this machine, with a small policy.",
        "Never run: the papers' models and GPUs (profile=paper). No number here was measured on a GPU.",
    ]
    if left_out:
        lines.append(f"Left out: the simulation of {left_out[0]} (`python run.py task=reproduce paper=das`).")
    return [*lines, *([f"{len(failed)} runs FAILED; they are named below."] if failed else [])]


def provenance(store: Path, runs: Sequence[Run]) -> str:
    """Return a sentence that says on which device the runs were done, at which commits of the code, and how long they
    took."""
    folders = [planned.folder(store) for planned in dict.fromkeys(runs) if planned.finished(store)]
    hashes = {json.loads((folder / "meta.json").read_text())["commit"] for folder in folders}
    commits = sorted(commit[:10] + "-dirty" * commit.endswith("-dirty") for commit in hashes)
    timings = [folder / "command.json" for folder in folders]  # a run that the user started by hand has no such file
    minutes = sum(json.loads(path.read_text())["seconds"] for path in timings if path.exists()) / 60
    machine = meta(0)
    return (
        f"{machine['device']}, {machine['cores']} cores; commit {', '.join(commits)}; {len(folders)} runs, "
        f"{minutes:.0f} minutes."
    )


def experiment(config: RunConfig, composed: Composed, folder: str) -> None:
    """Do the runs that are missing, then write the section with its figures to outputs/reproduce/NAME/report.html and
    report.md: of one row of a file of configs/experiment, or of all.

    Raises RunFailed with the reason of the first run that failed.
    """
    if not config.experiment:
        raise UserError(f"experiment=NAME is missing: choose one of {', '.join(planned_runs.FILES)}")
    profile, file, only = str(config.profile), composed.choices["experiment"], config.experiment["only"]
    names = planned_runs.names(file) if only is None else [f"{file}_{only}"]
    experiments = [planned_runs.load(name, profile, planned_runs.passed_on(composed.overrides)) for name in names]
    planned_runs.check_runs(experiments)
    progress, store = Progress(0), Path(folder)
    failed = planned_runs.make([run for each in experiments for run in each.runs.values()], store, progress)
    if failed:
        raise RunFailed(next(iter(failed.values())))
    for each in experiments:
        section = planned_runs.write_section(each, store, profile)
        report = store / planned_runs.section_folder(each, profile) / "report.html"
        write_text(report.with_suffix(".md"), markdown(each.title, "", [section]))
        lines = (
            summary(section.orderings) if section.orderings else ["This experiment shows numbers and makes no claim."]
        )
        write_page(report, each.title, lines, [], None, {"Result": [section]})
        progress.note(boxed(each.title, [*lines, *map(str, section.orderings)]))
        progress.note(f"page: {report.absolute()}  (opens in a browser, no server needed)")
