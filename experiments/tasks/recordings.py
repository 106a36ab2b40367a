"""task=recordings: fetch public recordings of real models' rollouts, for the replays of the papers."""

from pathlib import Path

from experiments.papers.recordings import fetch, recordings
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Write a file for each recording that the folder lacks. Prints a line for each: source, licence, size."""
    task, progress, target = config.task, Progress(0), Path(config.task.folder)
    known = {recording.name: recording for recording in recordings()}
    names = list(known) if task.only is None else [str(name) for name in task.only]
    if unknown := set(names) - set(known):
        raise UserError(f"task.only: {', '.join(sorted(unknown))} unknown; known are {', '.join(known)}")
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        recording = known[name]
        about = f"{recording.model}; github.com/{recording.repository}, {recording.licence}"
        if (target / f"{name}.jsonl.gz").exists():
            progress.note(f"{name}: there already ({about})")
            continue
        progress.note(f"{name}: fetching {len(recording.files)} files ({about})")
        progress.note(f"{name}: {fetch(recording, str(task.source), target)} responses")
    progress.note(f"recordings: {target}")
