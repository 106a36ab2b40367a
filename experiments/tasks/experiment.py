"""experiment=NAME: run what a figure, table or ablation needs, in a profile, and write its section of the report.

A run is a plain command of run.py. It is kept in runs/ under a name made from its overrides, so that experiments share
runs and what is finished is not done again.
"""

from pathlib import Path

from omegaconf import DictConfig

from analysis.report import markdown
from experiments.harness import planned_runs
from experiments.run.errors import RunFailed
from experiments.run.progress import Progress
from experiments.run.run_folder import write_text


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Run what is missing, then write the section: outputs/reproduce/NAME/report.md with its figures."""
    experiment = planned_runs.load(config.experiment.name, config.profile, planned_runs.handed_on(overrides))
    planned_runs.check([experiment])
    progress = Progress(0)
    kept = Path(folder)
    failed = planned_runs.make(list(experiment.runs.values()), kept, progress)
    if failed:
        raise RunFailed(next(iter(failed.values())))
    section = planned_runs.written(experiment, kept, config.profile)
    report = kept / planned_runs.place(experiment, config.profile) / "report.md"
    write_text(report, markdown(experiment.title, "", [section]))
    for ordering in section.orderings:
        progress.note(str(ordering))
    progress.note(f"report: {report}")
