"""Strike runs at random moments, in all ways: run it at night, or with the names of some ways.

Each run must end as its row says, leave no process, and become, resumed if it had to be, bit for bit like a run that
was left alone. Prints a line for each strike, and exits with 1 if something is wrong.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from equal_runs import compare  # noqa: E402

from analysis import read  # noqa: E402
from experiments.arm.resume import CHECKPOINTS, SCRATCH, hint  # noqa: E402
from experiments.training import checkpoint  # noqa: E402
from rewards.process import die_with_parent  # noqa: E402

# Fixed drafts depend on no measured times, so they can be compared too. The comparison has three steps an epoch.
SIZES = "trainer.max_completion_length=128 engine.max_model_len=256 budget=fixed budget.tokens=8 wandb=off"
COMPARISON = f"trainer.max_steps=8 data.problems=6 checkpoint.every=2 {SIZES}".split()
TRAINING = f"task=train trainer.max_steps=4 checkpoint.every=1 {SIZES}".split()
CLUSTER = ["cluster=ray", "cluster.silent_s=20"]
MARK = "DAS_STRUCK_RUN"  # environment variable of all processes of a struck run: its folder
ORPHAN_S = 10.0  # seconds within which processes must end after their parent was killed
PAUSED_S = 30.0  # seconds for which an engine and the trainer are stopped


# ---- what is struck: ids of processes, one of which is chosen. A negative id: a process group ----


def group_of(pid: int, folder: Path) -> list[int]:
    return [-pid]


def run_of(pid: int, folder: Path) -> list[int]:
    return [pid]


def arms_of(pid: int, folder: Path) -> list[int]:
    """The processes of a comparison's arms: forks of its warm process, or new interpreters."""
    with suppress(psutil.NoSuchProcess):  # one of them ends just now
        children = psutil.Process(pid).children()
        warm = [child for child in children if "multiprocessing.forkserver" in " ".join(child.cmdline())]
        forks = [fork for server in warm for fork in server.children()]
        return [arm.pid for arm in forks or [child for child in children if "spawn_main" in " ".join(child.cmdline())]]
    return []


def engines_of(pid: int, folder: Path) -> list[int]:
    return [pid for pid, name in living(folder).items() if name.startswith("ray::RolloutEng")]


def living(folder: Path) -> dict[int, str]:
    """Ids and names of the living processes of a struck run, without Ray's own, which may live for a minute longer."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is another user's
            ours = process.environ().get(MARK) == str(folder) and "/ray/" not in " ".join(process.cmdline())
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process.name()
    return found


# ---- when it comes, and what it damages besides ----


def has_rows(folder: Path, rows: int) -> bool:
    metrics = folder / "metrics.jsonl"
    return metrics.exists() and metrics.read_bytes().count(b"\n") >= rows


def is_saving(folder: Path, rows: int) -> bool:
    """Whether a checkpoint is half written, of a step that comes after these rows of two arms."""
    being_written = (int(path.name.split("-")[1]) for path in folder.glob(f"arms/*/{SCRATCH}/checkpoint-*"))
    return any(step * 2 > rows for step in being_written)


def damage(folder: Path) -> None:
    """Tear the last row of an arm, and spoil a bit of its newest checkpoint if both arms have two."""
    arm, *others = random.sample(sorted(folder.glob("arms/*")), 2)
    with (arm / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": ')
    common = sorted(set.intersection(*(set(checkpoint.steps(each / CHECKPOINTS)) for each in (arm, *others))))
    if len(common) > 1:
        files = sorted(checkpoint.step_folder(arm / CHECKPOINTS, common[-1]).rglob("*"))
        victim = random.choice([path for path in files if path.is_file()])
        content = bytearray(victim.read_bytes())
        content[random.randrange(len(content))] ^= 1
        victim.write_bytes(content)


# Exit codes. From 1 on with one line, that says how to resume; 2: a cluster whose engines do not start.
KILLED, FAILS, SURVIVES = (-signal.SIGKILL,), (1,), (0, 1, 2)


@dataclass(frozen=True)
class Strike:
    """One way to strike a run: when, what is struck and how, and what must hold after."""

    whom: Sequence[Callable[[int, Path], list[int]]] = ()  # a process of each; (): the fault is inside the run
    ends: Sequence[int] = KILLED  # exit codes with which the run may end
    signals: Sequence[int] = (signal.SIGKILL,)  # PAUSED_S apart
    when: Callable[[Path, int], bool] = has_rows  # at once, or within the step after
    then: Callable[[Path], None] = lambda folder: None  # what happens to the stopped run's files
    fault: tuple[str, Sequence[int]] | None = None  # of sitecustomize.py, and the calls of which one causes it


PASSES, SYNCS, EXCHANGES = range(20, 100), range(1, 4), range(2, 4)  # each in a run of three steps already
OF_COMPARISON = {
    "run": Strike([group_of]),
    "parent": Strike([run_of]),
    "arm": Strike([arms_of], FAILS),
    "checkpoint": Strike([group_of], when=is_saving),
    "sync": Strike(fault=("sync", range(1, 3))),
    "engine": Strike((), FAILS, fault=("engine", range(1, 200))),
    "damage": Strike([group_of], then=damage),
}
OF_CLUSTER = {
    "kill": Strike([engines_of], SURVIVES),
    "freeze": Strike([engines_of], SURVIVES, [signal.SIGSTOP]),
    "pause": Strike([engines_of, run_of], SURVIVES, [signal.SIGSTOP, signal.SIGCONT]),
    "driver": Strike([run_of]),
    "raise": Strike((), SURVIVES, fault=("engine", PASSES)),
    "memory": Strike((), SURVIVES, fault=("memory", PASSES)),
    "start": Strike((), SURVIVES, fault=("start", [1])),
    "history": Strike((), SURVIVES, fault=("history", EXCHANGES)),
    "loaded": Strike((), SURVIVES, fault=("loaded", SYNCS)),
}


def start(arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    """Start a run in `folder`, or resume it, in a process group of its own that ends with this process."""
    given = [f"resume={folder}"] if (folder / "overrides.json").exists() else arguments
    paths = [str(ROOT / "tests" / "nightly"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *given, f"hydra.run.dir={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | environment,
    )


def finished(arguments: Sequence[str], folder: Path) -> list[str]:
    """Start or resume a run that nobody strikes. Returns what it says if it fails."""
    process = start(arguments, folder, {})
    errors = process.communicate()[1]
    return [f"it failed: {errors.strip()[-300:]}"] if process.returncode else []


def signal_all(way: Strike, pid: int, folder: Path) -> bool:
    """Send the signals to a process of each that the row names. Returns False if one of them has ended."""
    found = [pids_of(pid, folder) for pids_of in way.whom]
    chosen = [random.choice(pids) for pids in found if pids]
    with suppress(ProcessLookupError):
        for number, each in enumerate(way.signals):
            time.sleep(PAUSED_S if number else 0)
            for one in chosen:
                os.kill(one, each)
        return len(chosen) == len(found)
    return False


def strike(way: Strike, arguments: Sequence[str], folder: Path, row: int, step_s: float) -> tuple[int, list[str]]:
    """Start or resume a run, and strike it after `row` rows of metrics.jsonl. Returns its exit code, and what is wrong.
    step_s: seconds of the step after that row."""
    mark, environment, resumable, came = folder / "struck", {MARK: str(folder)}, "", False
    mark.unlink(missing_ok=True)
    if way.fault is not None:
        environment["DAS_FAULT"] = f"{way.fault[0]}:{random.choice(way.fault[1])}:{mark}"
    process = start(arguments, folder, environment)
    if way.fault is None:
        # A run that was struck before has rows before its arms have begun again.
        while process.poll() is None and not (
            way.when(folder, row) and all(pids(process.pid, folder) for pids in way.whom)
        ):
            time.sleep(0.0005)
        time.sleep(random.random() * (step_s if way.when is has_rows else 0.05))
        resumable = hint(folder)  # before it ends, because other arms may save until then
        came = process.poll() is None and signal_all(way, process.pid, folder)
    process.wait()
    deadline = time.monotonic() + ORPHAN_S
    while (orphans := living(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in orphans:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it may hold the run's output open
    errors, code = process.communicate()[1], process.returncode
    resumable = hint(folder) if way.fault else resumable
    one_line = code <= 0 or (len(errors.splitlines()) == 1 and (not resumable or "resume=" in errors))
    wrong = {
        f"left processes: {', '.join(orphans.values())}": not orphans,
        "it ended before the strike": came or mark.exists(),
        f"ended with {code} instead of {way.ends}": code in way.ends,
        f"no one clear line: {errors.strip()[-300:]}": one_line,
    }
    way.then(folder)
    return code, [line for line, holds in wrong.items() if not holds]


def main(names: Sequence[str]) -> int:
    wrong: list[str] = []

    def note(line: str, found: Sequence[str]) -> None:
        print(f"{line:10s} {'; '.join(found) or 'good'}", flush=True)
        wrong.extend(found)

    scratch = Path(tempfile.mkdtemp(prefix="strikes_"))
    for table, alone, more in ((OF_COMPARISON, COMPARISON, []), (OF_CLUSTER, TRAINING, CLUSTER)):
        kinds = [kind for kind in table if kind in (names or table)]
        random.shuffle(kinds)
        # A comparison is struck in all ways, one after the other. A run on a cluster may survive its strike.
        for series in [[kind] for kind in kinds] if more else [kinds] * bool(kinds):
            whole = scratch / ("training" if more else "comparison")
            if not whole.exists():
                note("left alone", finished(alone, whole))
            step_s = [row["step_s"] for row in read.metrics(whole)]
            folder = scratch / "_".join(series)
            folder.mkdir()
            for part, kind in enumerate(series):
                row = max(1, int(len(step_s) * (part + random.random()) / len(series)))
                after_s = step_s[min(row, len(step_s) - 1)]
                code, found = strike(table[kind], [*alone, *more], folder, row, after_s)
                note(kind, found)
            failed = finished([], folder) if code else []
            note("equal", failed or compare(whole, folder, bool(more))[:3])
    print(f"{len(wrong)} things are wrong: {scratch}" if wrong else "all ended as they must, and became equal")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
