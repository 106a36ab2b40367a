"""task=kill_test and task=fault_test: strike runs at random moments, by the table STRIKES. Each must end as its row
says, leave no process, and be, when it has been resumed if it had to, bit for bit like a run that was left alone.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from analysis import read
from experiments.harness.resume import CHECKPOINTS, SCRATCH, hint
from experiments.harness.runs.equal_runs import compare
from experiments.harness.validate import check, refuse_one_arm
from experiments.run import child
from experiments.run.errors import CONFIGS, RunFailed, UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, responses_file
from experiments.settings.compose import compose_config
from experiments.settings.config import RunConfig, run_config
from experiments.training import checkpoint

ROOT = CONFIGS.parent
TASKS = {"kill_test": "compare", "fault_test": "train"}  # what is struck
MARK = "DAS_STRUCK_RUN"  # environment variable of all processes of a struck run: its folder
ENGINE = "ray::RolloutEngine"  # name of an engine's process
ORPHAN_S = 10.0  # seconds within which processes must end after their parent was killed
PAUSED_S = 30.0  # seconds for which an engine and the trainer are stopped
ANSWER_S = 0.0005  # seconds between two looks whether the moment has come


# ---- what is struck: ids of processes, one of which is chosen. A negative id: a process group ----


def group_of(pid: int, folder: Path) -> list[int]:
    """Return the group of all processes of a run."""
    return [-pid]


def run_of(pid: int, folder: Path) -> list[int]:
    """Return the process that was started."""
    return [pid]


def arms_of(pid: int, folder: Path) -> list[int]:
    """Return the processes of a comparison's arms: forks of its warm process, or new interpreters."""
    children = psutil.Process(pid).children()
    warm = [child for child in children if "multiprocessing.forkserver" in " ".join(child.cmdline())]
    forks = [fork for server in warm for fork in server.children()]
    return [arm.pid for arm in forks or [child for child in children if "spawn_main" in " ".join(child.cmdline())]]


def engines_of(pid: int, folder: Path) -> list[int]:
    """Return the engines of a run on a cluster."""
    return [pid for pid, name in living(folder).items() if name.startswith(ENGINE)]


def living(folder: Path) -> dict[int, str]:
    """Return the ids and names of the living processes of the struck run in this folder, without Ray's own, which may
    live for a minute longer."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is another user's
            ours = process.environ().get(MARK) == str(folder) and "/ray/" not in " ".join(process.cmdline())
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process.name()
    return found


# ---- when it comes ----


def has_rows(folder: Path, rows: int) -> bool:
    """Return whether the run has written so many rows of metrics.jsonl."""
    metrics = folder / "metrics.jsonl"
    return metrics.exists() and metrics.read_bytes().count(b"\n") >= rows


def is_saving(folder: Path, rows: int) -> bool:
    """Return whether a checkpoint is half written, of a step that comes after these rows of two arms."""
    being_written = (int(path.name.split("-")[1]) for path in folder.glob(f"arms/*/{SCRATCH}/checkpoint-*"))
    return any(step * 2 > rows for step in being_written)


# ---- what it damages besides ----


def damage(folder: Path, rng: random.Random) -> None:
    """Damage a file of a stopped run. It is a torn row of metrics.jsonl or, if the arms have two checkpoints, a file of
    the newer one or the responses of its step."""
    arms = sorted(folder.glob("arms/*"))
    if not arms:
        return
    common = sorted(set.intersection(*(set(checkpoint.steps(arm / CHECKPOINTS)) for arm in arms)))
    arm = rng.choice(arms)
    how = rng.choice(("row", "checkpoint", "responses")) if len(common) > 1 else "row"
    if how == "row":
        with (arm / "metrics.jsonl").open("a") as metrics:
            metrics.write('{"step": ')
        return
    victim = responses_file(arm, common[-1])
    if how == "checkpoint":
        files = checkpoint.step_folder(arm / CHECKPOINTS, common[-1]).rglob("*")
        victim = rng.choice(sorted(path for path in files if path.is_file()))
    content = bytearray(victim.read_bytes())
    content[rng.randrange(len(content)) if how == "checkpoint" else -1] ^= 1
    victim.write_bytes(content)


# ---- the table ----

# Exit codes. From 1 on with one line, that says how to resume; 2: a cluster whose engines do not start.
KILLED, FAILS, SURVIVES = (-signal.SIGKILL,), (1,), (0, 1, 2)


@dataclass(frozen=True)
class Strike:
    """One way to strike a run: when, what is struck and how, and what must hold after."""

    whom: Sequence[Callable[[int, Path], list[int]]] = ()  # a process of each; (): FAULTS has it, inside the run
    signals: Sequence[int] = (signal.SIGKILL,)  # PAUSED_S apart
    ends: Sequence[int] = KILLED  # exit codes with which the run may end
    when: Callable[[Path, int], bool] = has_rows
    within_s: float | None = None  # it comes up to so many seconds later; None: within the step after
    then: Callable[[Path, random.Random], None] | None = None  # what happens to the stopped run's files
    fault: str = ""  # kind of FAULTS (experiments/faults/sitecustomize.py)
    calls: Sequence[int] = ()  # from which the number of the call is drawn that causes it


PASSES, SYNCS, EXCHANGES = range(20, 100), range(1, 4), range(2, 4)  # each in a run of three steps already
STRIKES: Mapping[str, Mapping[str, Strike]] = {
    "kill_test": {
        "run": Strike([group_of]),
        "parent": Strike([run_of]),
        "arm": Strike([arms_of], ends=FAILS),
        "checkpoint": Strike([group_of], when=is_saving, within_s=0.05),
        "sync": Strike(fault="sync", calls=range(1, 3)),
        "engine": Strike(fault="engine", calls=range(1, 200), ends=FAILS),
        "damage": Strike([group_of], then=damage),
    },
    "fault_test": {
        "kill": Strike([engines_of], ends=SURVIVES),
        "freeze": Strike([engines_of], [signal.SIGSTOP], SURVIVES),
        "pause": Strike([engines_of, run_of], [signal.SIGSTOP, signal.SIGCONT], SURVIVES),
        "driver": Strike([run_of]),
        "raise": Strike(fault="engine", calls=PASSES, ends=SURVIVES),
        "memory": Strike(fault="memory", calls=PASSES, ends=SURVIVES),
        "start": Strike(fault="start", calls=[1], ends=SURVIVES),
        "history": Strike(fault="history", calls=EXCHANGES, ends=SURVIVES),
        "loaded": Strike(fault="loaded", calls=SYNCS, ends=SURVIVES),
    },
}


@dataclass
class Struck:
    """One strike of a run: its kind, the row of metrics.jsonl after which the run ended, its exit code, and a line for
    each problem found."""

    kind: str
    row: int
    code: int
    wrong: list[str]


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Do one undisturbed run. Then strike further ones in the ways of `task.kinds`, and write result.json.

    Raises RunFailed unless all strikes came, and all runs ended as they must.
    """
    task = config.task
    in_turn = task.name == "kill_test"  # one run is struck in all ways; a run of fault_test may survive its strike
    kinds, arguments = plan(config, overrides)
    cluster = config.cluster is not None
    progress, path = Progress(0), Path(folder)
    run_folder, whole = RunFolder(path, config.resolved), path / "whole"
    alone = finish(start([argument for argument in arguments if not argument.startswith("cluster")], whole))
    if alone.returncode:
        raise RunFailed(f"the run that is left alone failed: {said(alone).removeprefix('error: ')}")
    step_s = [row["step_s"] for row in read.metrics(whole)]
    rows = len(step_s)
    rng = random.Random(config.seed)
    runs: list[dict[str, Any]] = []
    order: list[str] = []  # kinds in random order, each once before one comes again
    good, struck, began = 0, 0, time.monotonic()
    for number in count():
        wanted = task.runs if in_turn else task.faults
        if number >= wanted and time.monotonic() - began >= getattr(task, "minutes", 0) * 60:
            break
        order = order or rng.sample(kinds, len(kinds))
        now, order = (order, []) if in_turn else (order[:1], order[1:])
        target = path / f"struck_{number}"
        strikes = []
        for part, kind in enumerate(now):
            after = max(1, int(rows * (part + rng.random()) / len(now)))
            one = strike(kind, STRIKES[task.name][kind], arguments, target, after, step_s[min(after, rows - 1)], rng)
            progress.note(f"{kind:10s} ended after row {one.row:2d} of {rows} with {one.code} {'; '.join(one.wrong)}")
            strikes.append(one)
        done = finish(start(again(arguments, target), target)) if strikes[-1].code else None
        differences = [said(done)] if done and done.returncode else compare(whole, target, cluster)
        progress.note(f"run {number + 1}: {'; '.join(differences[:3]) or 'identical'}")
        good += 0 if differences else sum(not one.wrong for one in strikes)
        struck += len(strikes)
        runs.append({"strikes": [vars(one) for one in strikes], "differences": differences})
        run_folder.write_result({"runs": runs, "strikes": struck, "bit_identical": good})
    progress.note(f"{good} of {struck} strikes: ended as they must, bit for bit, and no process left behind")
    if good < struck:
        raise RunFailed(f"{struck - good} of {struck} strikes left a difference or a process: see {path}/result.json")


def plan(config: RunConfig, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the kinds of strikes that `task.kinds` chooses, and the settings of the struck runs.

    Raises UserError if a kind does not exist or a setting is impossible.
    """
    kinds, known = [str(kind) for kind in config.task.kinds], STRIKES[config.task.name]
    if not kinds or not set(kinds) <= set(known):
        raise UserError(f"task.kinds={kinds}: choose one or more of {', '.join(known)}")
    passed_on = [override for override in overrides if not override.startswith(("task", "hydra", "cache"))]
    arguments = [f"task={TASKS[config.task.name]}", *config.task.run, *passed_on, f"cache={config.cache}"]
    struck = run_config(compose_config(arguments))
    check(struck)
    refuse_one_arm(struck, arguments)
    return kinds, arguments


def strike(
    kind: str, way: Strike, arguments: Sequence[str], folder: Path, row: int, step_s: float, rng: random.Random
) -> Struck:
    """Start or resume a run, and strike it some time after it wrote `row` rows of metrics.jsonl. step_s: seconds of the
    step after that row."""
    environment, mark, resumable = {MARK: str(folder)}, folder / f"struck_{kind}", ""
    folder.mkdir(exist_ok=True)
    if way.fault:
        environment["DAS_FAULT"] = f"{way.fault}:{rng.choice(way.calls)}:{mark}"
    process = start(again(arguments, folder), folder, environment)
    if not way.fault:
        while process.poll() is None and not way.when(folder, row):
            time.sleep(ANSWER_S)
        time.sleep(rng.random() * (way.within_s or step_s))
        resumable = hint(folder)  # before, because other arms may save while the run ends
        found = [pids_of(process.pid, folder) for pids_of in way.whom] if process.poll() is None else [[]]
        if all(found):
            chosen = rng.sample([rng.choice(pids) for pids in found], len(found))
            for number, each in enumerate(way.signals):
                time.sleep(PAUSED_S if number else 0)
                if any([signalled(pid, each) for pid in chosen]):
                    mark.touch()
    process.wait()
    deadline = time.monotonic() + ORPHAN_S
    while (orphans := living(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in orphans:
        signalled(pid, signal.SIGKILL)  # it may hold the run's output open
    done = finish(process)
    wrong = [f"left processes: {', '.join(orphans.values())}"] if orphans else []
    if not mark.exists():
        wrong.append("it ended before the strike")
    if done.returncode not in way.ends:
        wrong.append(f"ended with {done.returncode} instead of {' or '.join(map(str, way.ends))}")
    resumable = hint(folder) if way.fault else resumable
    if done.returncode > 0 and (len(done.stderr.splitlines()) != 1 or (resumable and "resume=" not in done.stderr)):
        wrong.append(f"no one clear line: {said(done)}")
    if way.then:
        way.then(folder, rng)
    metrics = folder / "metrics.jsonl"
    return Struck(kind, len(read.metrics(folder)) if metrics.exists() else 0, done.returncode, wrong)


def signalled(pid: int, which: int) -> bool:
    """Send a signal to a process or, if its id is negative, to a process group. Returns False if it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, which)
        return True
    return False


def again(arguments: Sequence[str], folder: Path) -> Sequence[str]:
    """Return the arguments that start the run in `folder`, or resume it."""
    return [f"resume={folder}"] if (folder / "overrides.json").exists() else arguments


def start(arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Any:
    """Start run.py in its own process group. Returns the new process, which is killed when this process ends. folder:
    the run's folder. environment: further environment variables."""
    path = [str(ROOT / "experiments" / "faults"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return child.start(
        [sys.executable, str(ROOT / "run.py"), *arguments, f"hydra.run.dir={folder}"],
        environment=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))} | dict(environment or {}),
    )


def finish(process: Any) -> Any:
    """Wait until a process that `start` started ends. Returns its exit code and its output."""
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def said(done: Any) -> str:
    """Return the end of what a run that failed said."""
    return str(done.stderr.strip()[-300:])
