"""task=kill_test: kill a comparison at random moments and resume it. It must end bit for bit like one left alone."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from analysis import read
from analysis.metrics import timeless
from experiments.harness.resume import CHECKPOINTS, SCRATCH
from experiments.harness.runs.struck_runs import ORPHAN_S, finish, leave_alone, plan, start, wait_until
from experiments.run.errors import RunFailed
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, responses_file
from experiments.settings.config import RunConfig
from experiments.training import checkpoint

# "engine" kills nothing: the engine raises an error. "damage" is "run", and then a file is damaged.
KINDS = ("run", "parent", "arm", "checkpoint", "sync", "engine", "damage")
FROM_INSIDE = ("sync", "engine")  # experiments/faults/sitecustomize.py does these, inside the process
BYTES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")  # of the last checkpoint
# Files that a checkpoint may have too: a draft head with its optimizers, the noise scales that drafts learned, and the
# history of past responses.
LEARNED = ("head.pt", "coupled.npz", "history.npz")


@dataclass
class Kill:
    """One stop of a run: its kind, the row of metrics.jsonl after which it came, and a line for each problem found."""

    kind: str
    row: int
    wrong: list[str]


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Do one undisturbed run. Then stop each of `task.runs` runs once in every way of `task.kinds`, and resume it each
    time. Writes result.json.

    Raises RunFailed unless all of them end with identical results and leave no process.
    """
    kinds, arguments = plan(config, overrides, KINDS, "compare")
    progress = Progress(0)
    path = Path(folder)
    run_folder = RunFolder(path, config.resolved)
    undisturbed = path / "whole"
    leave_alone(arguments, undisturbed)
    rng = random.Random(config.seed)
    runs: list[dict[str, Any]] = []
    num_equal, began = 0, time.monotonic()
    for number in count():
        if number >= config.task.runs and time.monotonic() - began >= config.task.minutes * 60:
            break
        killed = path / f"killed_{number}"
        order = rng.sample(kinds, len(kinds))
        kills = kill_in_turn(order, arguments, killed, len(read.metrics(undisturbed)), rng, progress)
        done = finish(start([f"resume={killed}"], killed))
        differences = compare(undisturbed, killed) if not done.returncode else [done.stderr.strip()[-300:]]
        progress.note(f"run {number + 1}: {'; '.join(differences[:3]) or 'identical'}")
        num_equal += 0 if differences else sum(not kill.wrong for kill in kills)
        runs.append({"kills": [vars(kill) for kill in kills], "differences": differences})
        run_folder.write_result({"runs": runs, "bit_identical": num_equal})
    total = len(runs) * len(kinds)
    progress.note(f"{num_equal} of {total} stops: resumed bit for bit, and no process left behind")
    if num_equal < total:
        raise RunFailed(f"{total - num_equal} of {total} stops left a difference or a process: see {path}/result.json")


def kill_in_turn(
    kinds: Sequence[str], arguments: Sequence[str], folder: Path, rows: int, rng: random.Random, progress: Progress
) -> list[Kill]:
    """Stop the run in `folder` once in each way of `kinds`, at a random row of successive parts of its `rows` rows."""
    kills = []
    for part, kind in enumerate(kinds):
        resumed = [f"resume={folder}"] if (folder / "overrides.json").exists() else arguments
        after = int(rows * (part + rng.random()) / len(kinds))
        kill = kill_once(kind, resumed, folder, after, rng)
        progress.note(f"{kind:10s} struck after row {kill.row:2d} of {rows} {'; '.join(kill.wrong)}")
        kills.append(kill)
    return kills


def kill_once(kind: str, arguments: Sequence[str], folder: Path, row: int, rng: random.Random) -> Kill:
    """Start or resume a run, and stop it in the way `kind` some time after it wrote `row` rows of metrics.jsonl."""
    environment = {}
    if kind in FROM_INSIDE:
        environment = {"DAS_FAULT": f"{kind}:{rng.randrange(1, 3) if kind == 'sync' else rng.randrange(1, 200)}"}
    process = start(arguments, folder, environment)
    victim = psutil.Process(process.pid)
    wait_until(lambda: process.poll() is not None or ready(kind, folder, row))
    time.sleep(rng.random() * (0.05 if kind == "checkpoint" else 1.0))
    wrong = []
    offspring = victim.children(recursive=True) if process.poll() is None else []
    if process.poll() is not None and kind not in FROM_INSIDE:
        wrong.append("it ended before the strike")
    elif kind in ("run", "checkpoint", "damage"):
        os.killpg(process.pid, signal.SIGKILL)
    elif kind == "parent":
        victim.kill()
    elif kind == "arm":
        if arms := arms_of(victim):
            rng.choice(arms).kill()
        else:
            wrong.append("no arm was running")
    done = finish(process)
    says_one_line = kind in ("arm", "engine")
    expected = 1 if says_one_line else -signal.SIGKILL
    if done.returncode != expected:
        wrong.append(f"ended with {done.returncode} instead of {expected}")
    if says_one_line and len(done.stderr.splitlines()) != 1:
        wrong.append(f"no one clear line: {done.stderr[-300:]}")
    if kind == "damage":
        damage(folder, rng)
    _, alive = psutil.wait_procs(offspring, timeout=ORPHAN_S)
    if alive:
        wrong.append(f"left {len(alive)} processes")
    return Kill(kind, len(read.metrics(folder)) if (folder / "metrics.jsonl").exists() else 0, wrong)


def arms_of(run: psutil.Process) -> list[psutil.Process]:
    """Return the processes of a comparison's arms: forks of its warm process, or new interpreters (das/process.py)."""
    warm = [child for child in run.children() if "multiprocessing.forkserver" in " ".join(child.cmdline())]
    forks = [fork for server in warm for fork in server.children()]
    return forks or [child for child in run.children() if "spawn_main" in " ".join(child.cmdline())]


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


def ready(kind: str, folder: Path, rows: int) -> bool:
    """Return whether the moment to kill has come. rows: number of rows of metrics.jsonl that the run must have written
    before. For the kind "checkpoint", a checkpoint of a later step must be half written instead. Kinds in FROM_INSIDE
    are never ready: the run kills itself."""
    if kind in FROM_INSIDE:
        return False
    if kind == "checkpoint":
        being_written = (int(path.name.split("-")[1]) for path in folder.glob(f"arms/*/{SCRATCH}/checkpoint-*"))
        return any(step * 2 > rows for step in being_written)
    metrics = folder / "metrics.jsonl"
    return metrics.exists() and metrics.read_bytes().count(b"\n") >= rows


def compare(first: Path, second: Path) -> list[str]:
    """Return a line for each difference between the runs in two folders. Times are not compared."""
    folders = [Path(), *(path.relative_to(first) for path in sorted((first / "arms").iterdir()))]
    differences = []
    for name in folders:
        differences += [f"{name}/metrics.jsonl{what}" for what in differing_metrics(first / name, second / name)]
    for arm in folders[1:]:
        differences += [f"{arm}/{what}" for what in differing_files(first / arm, second / arm)]
    for figure in ("rollout_and_reward.png", "live_requests.png"):
        if not (second / figure).exists():
            differences.append(f"{figure} is missing")
    identical = [json.loads((folder / "result.json").read_text())["identical"] for folder in (first, second)]
    if identical[0] != identical[1]:
        differences.append("result.json: identical")
    return differences


def differing_metrics(first: Path, second: Path) -> Iterator[str]:
    """Yield the differences between the metrics.jsonl of two folders, apart from times."""
    rows, other_rows = (timeless(read.metrics(folder)) for folder in (first, second))
    if [(row["arm"], row["step"]) for row in rows] != [(row["arm"], row["step"]) for row in other_rows]:
        yield ": gaps or doubles"
    for row, other in zip(rows, other_rows, strict=False):
        for key in sorted({*row, *other}):
            if row.get(key) != other.get(key):
                yield f", step {row['step']}: {key}"


def differing_files(first: Path, second: Path) -> Iterator[str]:
    """Yield the names of files that differ between two folders of an arm. Compared are rollouts (without their times),
    final digests and checkpoints."""
    names = [sorted(path.name for path in (arm / "rollouts").iterdir()) for arm in (first, second)]
    if names[0] != names[1]:
        yield "rollouts: other files"
        return
    for step in range(1, len(names[0]) // 2 + 1):
        if timeless(read.rollout(first, step)) != timeless(read.rollout(second, step)):
            yield f"rollouts, step {step}"
    if read.final(first) != read.final(second):
        yield "final.json"
    last = checkpoint.steps(first / CHECKPOINTS)[0]
    for name in (*BYTES, *LEARNED):
        file, other = (checkpoint.step_folder(arm / CHECKPOINTS, last) / name for arm in (first, second))
        if name in LEARNED and not file.exists():
            continue
        if not other.exists() or checkpoint.sha256(file) != checkpoint.sha256(other):
            yield f"{name} of the last checkpoint"
    if checkpoint.steps(first / CHECKPOINTS) != checkpoint.steps(second / CHECKPOINTS):
        yield "other checkpoints"
