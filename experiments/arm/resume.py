"""Continue a run that was stopped, as if it had never stopped (resume=FOLDER on the command line)."""

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from analysis import read
from das.general import ranks
from das.general.files import write_text
from experiments.run.errors import CONFIGS, CheckpointError, UserError, reading
from experiments.run.progress import Progress
from experiments.run.run_folder import ENGINES, versions
from experiments.settings.checked import leaves, plain
from experiments.settings.compose import Composed, composed, task_of
from experiments.settings.config import FREE, FREE_KEYS, RunConfig
from experiments.settings.tasks import RESUMED
from experiments.training import checkpoint

WHO_TRAINS = {"train": True, "train_once": False, "recorded": None}  # settings of a comparison, and their defaults
CHECKPOINTS = "checkpoints"  # folder of an arm's complete checkpoints
SCRATCH = "trainer"  # folder where an arm's next checkpoint is written
# Files of a step's rollout.
ROLLOUT = re.compile(r"step_(?P<step>\d+)\.(timeline\.json|jsonl)\.gz(?P<partial>\.\d+\.tmp)?")
SHOWN = 5  # number of differences that a message names
REFUSED_S = 0.2  # seconds in which a lock that is just removed can be taken
LOCK = "lock"  # file that a run in its folder holds locked until it ends
WANDB = "wandb"  # W&B's folder in a run's folder
CODE = re.compile(r"[^\W\d]\w*(\.\w+)*:[^\W\d]\w*")  # the name of a class or function, module:name
OVERRIDES = "overrides.json"
RECORDS = (OVERRIDES, "meta.json", "metrics.jsonl", "result.json")  # a folder with one of them holds a run


# ---- command line and lock ----


def remember(folder: Path, overrides: Sequence[str]) -> None:
    """Write the command line's overrides into a run's folder, so that `recall` can read them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / OVERRIDES, json.dumps(_settings(overrides)))


def goes_on(now: Composed) -> bool:
    """Return whether a run's folder holds a run that was started with these overrides already, so that it is resumed
    without resume=FOLDER. A job that a cluster starts again therefore continues.

    Raises UserError if the folder holds another run, or one whose task cannot be resumed. Tasks whose folder is a store
    of several runs (task.folder) check each of these runs themselves.
    """
    folder, task = now.folder, now.config.task
    if task.get("folder") or not any((folder / name).exists() for name in RECORDS):
        return False
    held, elsewhere = f"{folder} already holds a run", "name another folder with hydra.run.dir=FOLDER"
    if task.name not in RESUMED:
        raise UserError(f"{held}, and task={task.name} cannot be resumed: move it away, or {elsewhere}")
    if differing := sorted({*_recorded(folder)} ^ {*_settings(now.overrides)}):
        raise UserError(
            f"{held} with other settings ({_first(differing)}): continue it with resume={folder}, or {elsewhere}"
        )
    return True


def _settings(overrides: Sequence[str]) -> list[str]:
    return [override for override in overrides if not override.startswith("resume=")]


def _recorded(folder: Path) -> list[str]:
    """The overrides that `remember` wrote. Raises UserError if there are none."""
    try:
        return [str(override) for override in json.loads((folder / OVERRIDES).read_text())]
    except (OSError, ValueError, TypeError, RecursionError):
        raise UserError(f"resume={folder}: it holds no run of task=train or task=compare (overrides.json)") from None


def recall(folder: Path, overrides: Sequence[str]) -> Composed:
    """Return the config of the run in `folder`: that of its command line, changed by `overrides`.

    Raises UserError if there is no such run, if its task cannot be resumed, or if somebody else may have made it
    (_refuse_foreign).
    """
    first = _recorded(folder)
    given_now = {_key(override) for override in overrides}
    combined = [*(override for override in first if _key(override) not in given_now), *overrides]
    if "resume" not in given_now:  # the run is started again in its folder
        combined.append(f"resume='{folder}'")
    again, task = composed(combined), task_of(first)
    if task not in RESUMED:
        raise UserError(f"resume={folder}: task={task} cannot be resumed, only {' and '.join(RESUMED)}")
    if (other := again.config.task.name) != task:
        raise UserError(f"resume={folder}: it holds a run of task={task}, which task={other} cannot continue")
    _refuse_foreign(folder, again, overrides)
    return again


def _refuse_foreign(folder: Path, again: Composed, overrides: Sequence[str]) -> None:
    """Refuse a folder that names a class or function of its own, unless `overrides` name it too, and one that holds a
    link, through which a run would write or delete elsewhere. Raises UserError."""
    given = " ".join(overrides)
    for key, value in leaves(plain(again.config)):
        for name in value if isinstance(value, list) else [value]:
            if CODE.fullmatch(str(name)) and name not in given:
                raise UserError(f"resume={folder}: it asks to run {key}={name}; if you trust it, repeat this setting")
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink():
                raise UserError(f"resume={folder}: {path} is a link; put a file or folder in its place")
        if WANDB in folders:
            folders.remove(WANDB)  # its own links lead to its logs


def _key(override: str) -> str:
    return override.lstrip("+~").split("=")[0]


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock the run in `folder` inside the `with` block. The lock is a file in it, which is removed when the block ends.

    Raises UserError if another process holds the lock.
    """
    path, lock = folder / LOCK, FileLock(folder / LOCK, timeout=REFUSED_S)
    while not lock.is_locked:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except FileNotFoundError:  # another process was refused, and has removed its empty folder meanwhile
            continue
        except Timeout:
            raise UserError(
                f"a run in {folder} is still running: wait for it, stop it, or name another folder with "
                "hydra.run.dir=FOLDER"
            ) from None
    mine = path.stat()
    try:
        yield
    finally:
        with suppress(FileNotFoundError):  # the folder was deleted meanwhile, or moved
            if os.path.samestat(path.stat(), mine):
                path.unlink()
        lock.release()


def start_again(folder: Path, unless: Callable[[], object]) -> None:
    """Empty the folder of a run that no process does, unless `unless` says that something in it is still needed.

    Raises UserError if a process does the run.
    """
    with hold(folder):
        for path in () if unless() else folder.iterdir():
            if path.name != LOCK:  # it is held
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def hint(folder: Path) -> str:
    """Return the command that resumes the run, as the end of an error line. Empty if the run has no checkpoint yet."""
    saved = [*folder.glob(f"{CHECKPOINTS}/step_*"), *folder.glob(f"arms/*/{CHECKPOINTS}/step_*")]
    if not saved:
        return ""
    launch = f"-m {read.config(folder)['engine']['launch']} " if ranks.count() > 1 else ""
    recorded = _recorded(folder) if (folder / OVERRIDES).exists() else []
    own = [override for override in recorded if CODE.fullmatch(override.partition("=")[2])]  # see _refuse_foreign
    return f"; to resume: python {launch}run.py {' '.join([*own, f'resume={folder}'])}"


def arguments(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Return the arguments for Python that start the run in `folder` with these overrides, or resume it if it has
    checkpoints."""
    place = "resume" if hint(folder) else "hydra.run.dir"
    return [str(CONFIGS.parent / "run.py"), *overrides, f"{place}='{folder.absolute()}'"]


# ---- to which run checkpoints belong ----


def identity(config: RunConfig) -> dict[str, Any]:
    """Return the settings that identify a run. Each checkpoint records them.

    train_arm.py adds `policy` and `data`: digests of the initial weights and of the problems.
    """
    named = json.loads(json.dumps({key: value for key, value in config.resolved.items() if key not in FREE}))
    settings = {key: value for key, value in leaves(named) if key not in FREE_KEYS and value != {}}
    for name, usual in WHO_TRAINS.items():  # the checkpoints of arms that do not train have no optimizer state
        if (value := getattr(config.task, name, usual)) != usual:
            settings[f"task.{name}"] = value
    return {"config": settings}


def refuse_another(folder: Path, step: int, ours: Mapping[str, Any]) -> None:
    """Raise UserError, which names the differences, unless the checkpoint of `step` in `folder` belongs to this run;
    CheckpointError if it is damaged. ours: the identity of this run."""
    theirs = checkpoint.read_manifest(folder, step)["about"]
    their_settings, our_settings = theirs["config"], ours["config"]
    wrote, resuming = (settings.get("engine.processes", 1) for settings in (their_settings, our_settings))
    if wrote != resuming:
        raise UserError(
            f"{wrote} processes wrote the checkpoints in {folder}, each with the history of its own problems: resume "
            f"with engine.processes={wrote}, not {resuming}"
        )
    differences = [
        f"{key} ({their_settings.get(key, 'absent')} there, {our_settings.get(key, 'absent')} here)"
        for key in sorted({*their_settings, *our_settings})
        if their_settings.get(key, "absent") != our_settings.get(key, "absent")
    ]
    for name, words in (("policy", "the policy's first weights"), ("data", "the problems")):
        if name in ours and theirs[name] != ours[name]:
            differences.append(words)
    if differences:
        raise UserError(f"the checkpoints in {folder} belong to another run; these differ: {_first(differences)}")


def _first(differences: Sequence[str]) -> str:
    """Return the first of some differences, and how many more there are."""
    more = f" and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
    return f"{', '.join(differences[:SHOWN])}{more}"


# ---- from which checkpoint to resume ----


def newest(arms: Mapping[Path, RunConfig], note: Callable[[str], None]) -> int:
    """Find the newest step of which every arm has a valid checkpoint, and whose rows and rollouts up to that step are
    whole. Returns the step; 0 if there is no checkpoint.

    arms: folder -> config. note: called with a line for each checkpoint that is not used.
    Raises UserError for checkpoints of another run, and if none can be used: a new start would overwrite the finished
    steps.
    """
    identities = {arm: identity(config) for arm, config in arms.items()}
    common = set.intersection(*(set(checkpoint.steps(arm / CHECKPOINTS)) for arm in arms))
    whole, reason = min((whole_steps(arm) for arm in arms), key=lambda found: found[0]) if common else (0, "")
    damage = ""
    for step in sorted(common, reverse=True):
        try:
            if step > whole:
                raise CheckpointError(reason)
            for arm, config in arms.items():
                folder, ours = arm / CHECKPOINTS, identities[arm]
                refuse_another(folder, step, ours)
                checkpoint.verify(folder, step, ended=step == config.trainer.max_steps)
        except CheckpointError as error:
            damage = damage or str(error)
            note(f"checkpoint of step {step} is not used: {error}")
            continue
        return step
    if damage:
        raise UserError(f"no checkpoint can be used: {damage}; restore that file, or start a new run in another folder")
    return 0


def whole_steps(folder: Path) -> tuple[int, str]:
    """Return the last step up to which an arm's folder has every row and every rollout, and why it is not a later
    one."""
    metrics = folder / "metrics.jsonl"
    try:
        rows = read.metrics(folder)
    except (OSError, ValueError) as error:
        return 0, str(error)
    for expected, row in enumerate(rows, 1):
        if row.get("step") != expected:
            return expected - 1, f"{metrics} has no row of step {expected} where it belongs"
        for read_file in (read.rollout, read.timeline):
            try:
                read_file(folder, expected)
            except (OSError, EOFError, zlib.error, ValueError) as error:
                return expected - 1, f"the rollout of step {expected} in {folder} is lost or damaged: {error}"
    return len(rows), f"{metrics} ends with step {len(rows)}"


def rewind(folder: Path, step: int) -> list[dict[str, Any]]:
    """Reset an arm's folder to its state at the end of `step`, up to which `whole_steps` has found every row. Returns
    the rows of metrics.jsonl that remain."""
    rows = read.metrics(folder)[:step] if step else []
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    set_rows(folder / "metrics.jsonl", rows)
    if (folder / ENGINES).exists():
        set_rows(folder / ENGINES, [row for row in read.lines(folder / ENGINES) if row["step"] <= step])
    for path in (folder / "rollouts").iterdir():
        ours = ROLLOUT.fullmatch(path.name)  # other files are the user's
        if ours and (ours["partial"] or int(ours["step"]) > step):
            path.unlink()
    for later in checkpoint.steps(folder / CHECKPOINTS):
        if later > step:  # damaged, or missing in another arm
            checkpoint.discard(checkpoint.step_folder(folder / CHECKPOINTS, later))
    shutil.rmtree(folder / SCRATCH, ignore_errors=True)
    for path in (folder / "final.json", *folder.glob("history*.npz")):  # history_rank1.npz ...
        path.unlink(missing_ok=True)
    return rows


def rewind_all(arms: Mapping[Path, RunConfig], folder: Path, progress: Progress) -> int:
    """Reset the comparison in `folder` to the newest valid checkpoint that every arm has. Returns its step.

    arms: folder -> config. The comparison's metrics.jsonl is rebuilt from those of the arms, because a run may be
    killed after an arm wrote its row and before the comparison wrote it.
    """
    step = newest(arms, progress.note)
    rows_of_arms = [rewind(path, step) for path in arms]
    set_rows(folder / "metrics.jsonl", interleaved(rows_of_arms))
    announce(folder, step, progress)
    return step


def interleaved(rows_of_arms: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the rows of several arms into the order in which run_arms.py writes them: step by step, arm by arm."""
    return [row for rows_of_step in zip(*rows_of_arms, strict=True) for row in rows_of_step]


def set_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace a whole file of JSON lines by these rows."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


# ---- messages ----


def announce(folder: Path, step: int, progress: Progress) -> None:
    """Print from which step the run in `folder` resumes, and which packages have changed since. A run without a
    checkpoint starts anew; it may have been killed before it wrote which packages it has."""
    progress.resume(step)
    if not step:
        progress.note(f"no checkpoint in {folder}: starting from the first step")
        return
    progress.note(f"resuming after step {step}, in {folder}")
    with reading(folder / "meta.json"):
        first, now = read.meta(folder)["versions"], versions()
    changed = sorted(
        f"{name} {first.get(name)} -> {now.get(name)}" for name in {*first, *now} if first.get(name) != now.get(name)
    )
    if changed:
        since = "packages have changed since this run began, so numbers may differ in the last bits"
        progress.note(f"{since}: {', '.join(changed)}")
