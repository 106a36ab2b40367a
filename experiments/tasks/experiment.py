"""experiment=NAME: do the runs that a figure, table or ablation needs, and write its section as a page."""

from pathlib import Path

from analysis.orderings import summary
from analysis.report import markdown, write_page
from analysis.verdict import boxed
from das.general.files import write_text
from experiments import planned_runs
from experiments.run.errors import RunFailed
from experiments.run.progress import Progress
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Do the runs that are missing, then write the section with its figures to outputs/reproduce/NAME/report.html and
    report.md. The ablations are in one file, and each has its own section.

    Raises RunFailed with the reason of the first run that failed.
    """
    profile, names = str(config.profile), [str(config.experiment["name"])]
    if names == [planned_runs.ABLATION]:
        only = config.experiment.get("only")
        names = planned_runs.ablations() if only is None else [f"{planned_runs.ABLATION}_{only}"]
    experiments = [planned_runs.load(name, profile, planned_runs.passed_on(composed.overrides)) for name in names]
    planned_runs.check_runs(experiments)
    progress, store = Progress(0), Path(folder)
    failed = planned_runs.make([run for each in experiments for run in each.runs.values()], store, progress)
    if failed:
        raise RunFailed(next(iter(failed.values())))
    for experiment in experiments:
        section = planned_runs.write_section(experiment, store, profile)
        report = store / planned_runs.section_folder(experiment, profile) / "report.html"
        write_text(report.with_suffix(".md"), markdown(experiment.title, "", [section]))
        lines = (
            summary(section.orderings) if section.orderings else ["This experiment shows numbers and makes no claim."]
        )
        write_page(report, experiment.title, lines, [], None, {"Result": [section]})
        progress.note(boxed(experiment.title, [*lines, *map(str, section.orderings)]))
        progress.note(f"page: {report.absolute()}  (opens in a browser, no server needed)")
