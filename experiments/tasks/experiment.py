"""experiment=NAME: do the runs that a figure, table or ablation needs, and write its section of the report."""

from pathlib import Path

from omegaconf import DictConfig

from analysis.report import markdown
from experiments.harness.runs import planned_runs
from experiments.run.errors import RunFailed
from experiments.run.progress import Progress
from experiments.run.run_folder import write_text


def run(composed: DictConfig, overrides: list[str], folder: str) -> None:
    """Do the runs that are missing, then write the section with its figures to outputs/reproduce/NAME/report.md.

    Raises RunFailed with the reason of the first run that failed.
    """
    profile = str(composed.profile)
    experiment = planned_runs.load(str(composed.experiment.name), profile, planned_runs.passed_on(overrides))
    planned_runs.check_runs([experiment])
    progress = Progress(0)
    store = Path(folder)
    failed = planned_runs.make(list(experiment.runs.values()), store, progress)
    if failed:
        raise RunFailed(next(iter(failed.values())))
    section = planned_runs.write_section(experiment, store, profile)
    report = store / planned_runs.section_folder(experiment, profile) / "report.md"
    write_text(report, markdown(experiment.title, "", [section]))
    for ordering in section.orderings:
        progress.note(str(ordering))
    progress.note(f"report: {report}")
