"""resume=FOLDER: go on where a run was stopped, as if it never had been."""

import errno
import fcntl
import json
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig, OmegaConf

from analysis import read
from das.engine.build import EngineError
from das.training import checkpoint
from das.training.checkpoint import CheckpointError
from das.training.errors import TrainingDiverged, WeightSyncError
from experiments.run.errors import RunFailed, UserError, compose_config, reading
from experiments.run.progress import Progress
from experiments.run.run_folder import versions, write_text

TASKS = ("train", "compare")
FREE = ("resume", "checkpoint", "task", "wandb", "wandb_project", "out", "cache")  # keys that touch no token
CHECKPOINTS, SCRATCH = "checkpoints", "trainer"  # in an arm's folder: whole ones, and where the next is written


def remember(folder: Path, overrides: list[str]) -> None:
    """Leave the command line's overrides in a run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "overrides.json", json.dumps([o for o in overrides if not o.startswith("resume=")]))


def hold(folder: Path) -> IO[str]:
    """A lock on the run in `folder`, held while the file is open. Raises UserError where another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"resume={folder}: this run is still going on; stop it first") from None
    return file


def recall(folder: Path, overrides: list[str]) -> tuple[DictConfig, list[str]]:
    """The config of the run in `folder`, as its command line gave it, under the `overrides` given now.

    Raises UserError where there is no such run, or its task cannot be resumed.
    """
    try:
        first = [str(override) for override in json.loads((folder / "overrides.json").read_text())]
    except (OSError, ValueError, TypeError):
        raise UserError(f"resume={folder}: no run of task=train or task=compare (overrides.json)") from None
    given = {override.lstrip("+~").split("=")[0] for override in overrides}
    both = [override for override in first if override.lstrip("+~").split("=")[0] not in given] + overrides
    config = compose_config(both)
    if config.task.name not in TASKS:
        raise UserError(f"resume={folder}: task={config.task.name} cannot be resumed, only {' and '.join(TASKS)}")
    return config, both


def about(config: DictConfig) -> dict[str, Any]:
    """What a checkpoint says of its run's settings; `policy` and `data`, digests of what it started from, are added."""
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    kept = {str(key): value for key, value in resolved.items() if key not in FREE}
    return {"config": flat(kept)}


def flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys, values as JSON knows them."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            found |= flat({str(inner): item for inner, item in value.items()}, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = json.loads(json.dumps(value))
    return found


def refuse_another(said: Mapping[str, Any], expected: Mapping[str, Any], where: Path) -> None:
    """Raise UserError, naming what differs, unless a checkpoint belongs to this run."""
    theirs, ours = said["config"], expected["config"]
    differing = [
        f"{key} ({theirs.get(key, 'absent')} there, {ours.get(key, 'absent')} here)"
        for key in sorted({*theirs, *ours})
        if theirs.get(key, "absent") != ours.get(key, "absent")
    ]
    for name, words in (("policy", "the policy's first weights"), ("data", "the problems")):
        if name in expected and said[name] != expected[name]:
            differing.append(words)
    if differing:
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise UserError(f"the checkpoints in {where} are of another run; different: {', '.join(differing[:5])}{more}")


def newest(arms: Mapping[Path, DictConfig], note: Callable[[str], None]) -> int:
    """The newest step of which every arm has a whole checkpoint, 0 if there is none. arms: folder -> config.

    Says in a line what is torn. Raises UserError for checkpoints of another config, or where all are torn: to begin
    again would overwrite what was finished.
    """
    folders = {arm / CHECKPOINTS: about(config) for arm, config in arms.items()}
    common = set.intersection(*(set(checkpoint.steps(folder)) for folder in folders))
    torn = ""
    for step in sorted(common, reverse=True):
        try:
            for folder, expected in folders.items():
                checkpoint.verify(folder, step)
                refuse_another(checkpoint.run_identity(folder, step), expected, folder)
        except CheckpointError as error:
            torn = torn or str(error)
            note(f"checkpoint of step {step} is not used: {error}")
            continue
        return step
    if torn:
        raise UserError(f"no checkpoint is whole: {torn}; restore it, or start a new run without resume=")
    return 0


def rewind(folder: Path, step: int) -> list[dict[str, Any]]:
    """Bring an arm's folder back to the end of `step`; returns its rows of metrics.jsonl.

    Raises UserError unless each step is there once.
    """
    with reading(folder / "metrics.jsonl"):
        rows = read.metrics(folder) if (folder / "metrics.jsonl").exists() else []  # a torn last row is no row
        rows = [row for row in rows if row["step"] <= step]
    if [row["step"] for row in rows] != list(range(1, step + 1)):
        raise UserError(f"{folder / 'metrics.jsonl'} lacks steps that the checkpoint of step {step} has: damaged")
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    set_metrics(folder, rows)
    for path in (folder / "rollouts").iterdir():
        number = path.name.removeprefix("step_").split(".")[0]
        if path.suffix == ".tmp" or not number.isdigit() or int(number) > step:
            path.unlink()
    for later in checkpoint.steps(folder / CHECKPOINTS):
        if later > step:  # torn, or one that another arm lacks
            checkpoint.discard(checkpoint.step_folder(folder / CHECKPOINTS, later))
    shutil.rmtree(folder / SCRATCH, ignore_errors=True)
    for name in ("final.json", "history.npz"):
        (folder / name).unlink(missing_ok=True)
    return rows


def set_metrics(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Replace metrics.jsonl in one piece."""
    write_text(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def changed_versions(folder: Path) -> str:
    """A line on packages that are not those the run began with, for they may round differently; empty if all are."""
    with reading(folder / "meta.json"):
        first, now = json.loads((folder / "meta.json").read_text())["versions"], versions()
    changed = [
        f"{name} {first.get(name)} -> {now.get(name)}" for name in {*first, *now} if first.get(name) != now.get(name)
    ]
    return f"not the versions this run began with, so not bit for bit: {', '.join(sorted(changed))}" if changed else ""


def announce(folder: Path, step: int, progress: Progress) -> None:
    """Say where the run in `folder` goes on."""
    progress.resume(step)
    progress.note(f"going on after step {step}, in {folder}" if step else f"no checkpoint in {folder}: from the start")
    changed = changed_versions(folder)
    if changed:
        progress.note(changed)


def hint(folder: Path) -> str:
    """How to go on, for the line that says why a run stopped; empty where nothing was saved yet."""
    saved = [*folder.glob(f"{CHECKPOINTS}/step_*"), *folder.glob(f"arms/*/{CHECKPOINTS}/step_*")]
    return f"; to go on: python run.py resume={folder}" if saved else ""


def in_one_line(error: Exception) -> str:
    """What went wrong, for one line; the log has the rest."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"disk full while writing {error.filename or 'results'}"
    if isinstance(error, CheckpointError | WeightSyncError | TrainingDiverged | RunFailed | UserError):
        return " ".join(str(error).split())
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


@contextmanager
def stopped_in(folder: Path) -> Iterator[None]:
    """Turn what stops the training of the run in `folder` into one line that says how to go on."""
    try:
        yield
    except (UserError, EngineError, RunFailed):
        raise
    except Exception as error:
        log_traceback(folder / "log.txt")
        raise RunFailed(f"{in_one_line(error)} (log: {folder / 'log.txt'}){hint(folder)}") from error


def log_traceback(log: Path) -> None:
    """Append the traceback of the exception being handled."""
    with suppress(OSError), log.open("a") as file:  # a full disk has no room for it
        traceback.print_exc(file=file)
