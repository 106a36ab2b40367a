"""task=reproduce: every figure, table and ablation, the papers' numbers beside ours, as report.html and report.md.

With paper=das|efficient_rollout|nemo_rl that paper's replay at its own scale alone. Published numbers, with their
sources, are in experiments/papers/published.json.
"""

import importlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from analysis import read, report_page
from analysis.report import Line, Ordering, Section, Table, markdown, markdown_table
from experiments.harness import planned_runs
from experiments.harness.planned_runs import Experiment, Run
from experiments.run.errors import CONFIGS, RunFailed, UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, meta, write_text

PAPERS = {
    "das": "DAS, arXiv 2511.13841",
    "efficient_rollout": "EfficientRollout, arXiv 2606.18967",
    "nemo_rl": "System-integrated speculative decoding (NeMo RL), arXiv 2604.26779",
}
MINUTES = {"das": 10.0, "efficient_rollout": 1.0, "nemo_rl": 0.2}  # of a replay, 2 cores
ENGINE_RUN = "das_fig10"  # the experiment whose run fills the replay's column of the real engine


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """One paper's replay, or everything."""
    if config.paper is None:
        everything(config, overrides, Path(folder))
    elif config.paper in PAPERS:
        replay(config, Path(folder) / config.paper)
    else:
        raise UserError(f"paper={config.paper}: choose one of {', '.join(PAPERS)}, or none for everything")


def replay(config: DictConfig, folder: Path) -> None:
    """Compute the paper's sections; write report.md, figures, result.json."""
    published = json.loads((CONFIGS.parent / "experiments" / "papers" / "published.json").read_text())
    module = importlib.import_module(f"experiments.papers.{config.paper}")
    run_folder = RunFolder(folder, config)
    progress = Progress(0)
    sections = module.sections(config.task, config.budget, published, folder, progress)
    report = folder / "report.md"
    write_text(report, markdown(PAPERS[config.paper], module.PREFACE, sections))
    result = {"preface": module.PREFACE, "sections": [asdict(section) for section in sections]}
    write_text(folder.parent / "result.json", json.dumps(result, indent=1))
    run_folder.write_result(result)
    progress.note(f"report: {report}")


def everything(config: DictConfig, overrides: list[str], kept: Path) -> None:
    """All experiments in the profile, then the papers' replays; then the report. What is there is not made again.

    Raises RunFailed when a run failed; the report is written all the same and says so.
    """
    own = planned_runs.handed_on(overrides)
    planned = [planned_runs.load(name, config.profile, own) for name in planned_runs.names()]
    planned_runs.check(planned)
    progress = Progress(0)
    began = time.perf_counter()
    runs = [each for one in planned for each in one.runs.values()]
    failed = planned_runs.make(runs, kept, progress)
    replays = {} if config.profile == "smoke" else replays_of(config, overrides, planned, kept, progress)
    failed |= planned_runs.make(list(replays.values()), kept, progress)
    chapters = {
        "Figures of DAS, real engine": section_list(planned, "das_", kept, config.profile, failed),
        "Ablations, real engine": section_list(planned, "ablation_", kept, config.profile, failed),
    }
    for paper, one in replays.items():
        if one not in failed:
            chapters[f"{PAPERS[paper]}: at its own scale, replayed"] = replayed(one.folder(kept), paper, kept)
    files = write_report(config, kept, chapters, runs, failed)
    progress.note(f"{(time.perf_counter() - began) / 60:.0f} minutes; report: {files}")
    if failed:
        raise RunFailed(f"{len(failed)} runs failed, first: {next(iter(failed.values()))}")


def replays_of(
    config: DictConfig, overrides: Sequence[str], planned: Sequence[Experiment], kept: Path, progress: Progress
) -> dict[str, Run]:
    """A run a paper, for those whose recorded data is at hand. Of the overrides those of the task are theirs."""
    found = {}
    for paper in PAPERS:
        if paper == "das" and not Path(config.task.traces).exists():
            progress.note(
                f"skipped: the replay of {PAPERS[paper]} needs recorded rollouts, task.traces={config.task.traces}"
            )
            continue
        more = [override for override in overrides if override.startswith("task.")]
        if paper == "das":
            (engine,) = next(one for one in planned if one.name == ENGINE_RUN).runs.values()
            if engine.finished(kept):
                more.append(f"task.engine_run={os.path.relpath(engine.folder(kept))}")
        found[paper] = Run(("task=reproduce", f"paper={paper}", *more), MINUTES[paper])
        if paper == "das" and found[paper].finished(kept) and engine.finished(kept):
            own, engines = (each.folder(kept) / "result.json" for each in (found[paper], engine))
            if own.stat().st_mtime < engines.stat().st_mtime:  # the engine's run was made anew
                own.unlink()
    return found


def section_list(
    planned: Sequence[Experiment], prefix: str, kept: Path, profile: str, failed: Mapping[Run, str]
) -> list[Section]:
    """The experiments' sections; one whose run failed says so instead."""
    sections = []
    for one in planned:
        if not one.name.startswith(prefix):
            continue
        wrong = [failed[each] for each in one.runs.values() if each in failed]
        if wrong:
            sections.append(Section(one.title, f"FAILED: {wrong[0]}"))
            continue
        section = planned_runs.written(one, kept, profile)
        commands = f"Command: python run.py experiment={one.name}" + (f" profile={profile}" * (profile != "small"))
        figures = [f"{planned_runs.place(one, profile)}/{figure}" for figure in section.figures]
        sections.append(replace(section, setting=f"{section.setting} {commands}", figures=figures))
    return sections


def replayed(folder: Path, paper: str, kept: Path) -> list[Section]:
    """Sections of a paper's replay, as it wrote them."""
    result = read.result(folder)
    found = result["sections"]
    found[0]["setting"] = f"{result['preface']} {found[0]['setting']}"  # what holds for all of them
    where = folder.relative_to(kept) / paper
    return [
        Section(
            **{
                **section,
                "lines": [Line(**line) for line in section["lines"]],
                "figures": [str(where / figure) for figure in section["figures"]],
                "table": Table(**section["table"]) if section["table"] else None,
                "orderings": [Ordering(**ordering) for ordering in section["orderings"]],
            }
        )
        for section in found
    ]


def write_report(
    config: DictConfig,
    kept: Path,
    chapters: Mapping[str, Sequence[Section]],
    runs: Sequence[Run],
    failed: Mapping[Run, str],
) -> str:
    """report.html, report.md and report.json; returns where."""
    orderings = [(section, o) for sections in chapters.values() for section in sections for o in section.orderings]
    met = sum(ordering.met is True for _, ordering in orderings)
    head = Table(
        ["figure", "claim", "verdict", "evidence from our runs"],
        [[section.title, o.claim, o.verdict, o.evidence] for section, o in orderings],
    )
    title = "Reproduction" + (f", profile {config.profile}" if config.profile != "small" else "")
    preface = [provenance(kept, runs), f"{met} of {len(orderings)} orderings are met."]
    preface += [f"FAILED: {reason}" for reason in failed.values()]
    name = "report" if config.profile == "small" else f"report_{config.profile}"
    text = markdown(title, "\n\n".join(preface), []) + "\n" + markdown_table(head) + "\n"
    for chapter, sections in chapters.items():
        text += "\n" + markdown(chapter, "", sections)
    write_text(kept / f"{name}.md", text)
    report_page.write(kept / f"{name}.html", title, preface, head, chapters)
    result: dict[str, Any] = {
        "met": met,
        "orderings": [{"figure": section.title, **asdict(o)} for section, o in orderings],
        "sections": {chapter: [asdict(section) for section in sections] for chapter, sections in chapters.items()},
    }
    write_text(kept / f"{name}.json", json.dumps(result, indent=1))  # a paper alone has its result.json here
    return f"{kept / name}.html and .md"


def provenance(kept: Path, runs: Sequence[Run]) -> str:
    """Commits, device and time of the runs."""
    there = [each.folder(kept) for each in dict.fromkeys(runs) if each.finished(kept)]
    found = {json.loads((folder / "meta.json").read_text())["commit"] for folder in there}
    commits = sorted(commit[:10] + "-dirty" * commit.endswith("-dirty") for commit in found)
    timed = [folder / "command.json" for folder in there if (folder / "command.json").exists()]  # not if made by hand
    minutes = sum(json.loads(path.read_text())["seconds"] for path in timed) / 60
    about = meta(0)
    made = f"{len(there)} runs, {minutes:.0f} minutes"
    return f"{about['device']}, {about['cores']} cores; commit {', '.join(commits)}; {made}."
