"""task=kill_test: SIGKILL at random points of a comparison; resumed, is it bit for bit one that was never stopped?"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig

from analysis import read
from das.training import checkpoint
from experiments.harness.resume import CHECKPOINTS, SCRATCH
from experiments.run.errors import RunFailed, UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("run", "parent", "arm", "checkpoint", "sync", "engine")  # the last is no kill: the engine raises in a rollout
SELF = ("sync", "engine")  # experiments/faults/sitecustomize.py strikes from inside
CLOCK = ("draft_share", "pass_time_error")  # times by another name; the others end in _s
BYTES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")  # of the last checkpoint
ORPHAN_S = 10.0  # within which processes must have followed a killed parent


@dataclass
class Kill:
    """How a run was stopped, after which row of metrics.jsonl, and what was wrong with that."""

    kind: str
    row: int
    wrong: list[str]


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """One run left alone, `task.runs` killed in all ways and resumed after each; write result.json.

    Raises RunFailed unless all end equal.
    """
    kinds = list(config.task.kinds)
    if not kinds or not set(kinds) <= set(KINDS):
        raise UserError(f"task.kinds={kinds}: choose one or more of {', '.join(KINDS)}")
    progress = Progress(0)
    path = Path(folder)
    run_folder = RunFolder(path, config)
    given = [o for o in overrides if not o.startswith(("task", "hydra", "cache"))]
    arguments = [*config.task.run, *given, f"cache={config.cache}"]
    done = finish(start(arguments, path / "whole"))
    if done.returncode:
        raise RunFailed(f"the run that is left alone failed: {done.stderr.strip()[-300:]}")
    rng = random.Random(config.seed)
    kills, equal = [], 0
    for number in range(config.task.runs):
        other = path / f"killed_{number}"
        rows = len(read.metrics(path / "whole"))
        mine = []
        for place, kind in enumerate(rng.sample(kinds, len(kinds))):
            first = [f"resume={other}"] if (other / "overrides.json").exists() else arguments
            after = int(rows * (place + rng.random()) / len(kinds))  # all over the run
            mine.append(kill_once(kind, first, other, after, rng))
            progress.note(f"{kind:10s} struck after row {mine[-1].row:2d} of {rows} {'; '.join(mine[-1].wrong)}")
        done = finish(start([f"resume={other}"], other))
        differences = compare(path / "whole", other) if not done.returncode else [done.stderr.strip()[-300:]]
        progress.note(f"run {number + 1}: {'; '.join(differences[:3]) or 'identical'}")
        equal += 0 if differences else sum(not kill.wrong for kill in mine)
        kills.append({"kills": [vars(kill) for kill in mine], "differences": differences})
        run_folder.write_result({"runs": kills, "bit_identical": equal})
    total = config.task.runs * len(kinds)
    progress.note(f"{equal} of {total} times stopped, resumed bit-identically, without orphans")
    if equal < total:
        raise RunFailed(f"{total - equal} of {total} stops left a difference or a process: see {path}/result.json")


def kill_once(kind: str, arguments: list[str], folder: Path, row: int, rng: random.Random) -> Kill:
    """Start or resume a run and kill it, as `kind` says, some time after `row` of its metrics.jsonl."""
    environment = {}
    if kind in SELF:
        environment = {"DAS_FAULT": f"{kind}:{rng.randrange(1, 3) if kind == 'sync' else rng.randrange(1, 200)}"}
    process = start(arguments, folder, environment)
    victim = psutil.Process(process.pid)
    wait_until(lambda: process.poll() is not None or ready(kind, folder, row))
    time.sleep(rng.random() * (0.05 if kind == "checkpoint" else 1.0))
    wrong = []
    offspring = victim.children(recursive=True) if process.poll() is None else []
    if kind in ("run", "checkpoint"):
        os.killpg(process.pid, signal.SIGKILL)
    elif kind == "parent":
        victim.kill()
    elif kind == "arm":
        arms = [child for child in victim.children() if "spawn_main" in " ".join(child.cmdline())]
        rng.choice(arms).kill()
    said = finish(process)
    one_line = kind in ("arm", "engine")
    expected = 1 if one_line else -signal.SIGKILL
    if said.returncode != expected:
        wrong.append(f"ended with {said.returncode} in place of {expected}")
    if one_line and len(said.stderr.splitlines()) != 1:
        wrong.append(f"no one clear line: {said.stderr[-300:]}")
    _, alive = psutil.wait_procs(offspring, timeout=ORPHAN_S)
    if alive:
        wrong.append(f"left {len(alive)} processes")
    return Kill(kind, len(read.metrics(folder)) if (folder / "metrics.jsonl").exists() else 0, wrong)


def ready(kind: str, folder: Path, rows: int) -> bool:
    """Whether the moment to kill has come."""
    if kind in SELF:
        return False
    if kind == "checkpoint":
        writing = (int(path.name.split("-")[1]) for path in folder.glob(f"arms/*/{SCRATCH}/checkpoint-*"))
        return any(step * 2 > rows for step in writing)
    metrics = folder / "metrics.jsonl"
    return metrics.exists() and metrics.read_bytes().count(b"\n") >= rows


def wait_until(true: Callable[[], bool]) -> None:
    """Look every half millisecond."""
    while not true():
        time.sleep(0.0005)


def start(arguments: list[str], folder: Path, environment: dict[str, str] | None = None) -> Any:
    """run.py in a process group of its own."""
    path = [str(ROOT / "experiments" / "faults"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *arguments, f"hydra.run.dir={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))} | (environment or {}),
    )


def finish(process: Any) -> Any:
    """Wait for a process; what it printed."""
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def compare(whole: Path, other: Path) -> list[str]:
    """Where two runs differ, times apart."""
    found = []
    folders = [Path(), *(path.relative_to(whole) for path in sorted((whole / "arms").iterdir()))]
    for name in folders:
        mine, theirs = (timeless(read.metrics(folder / name)) for folder in (whole, other))
        if [(row["arm"], row["step"]) for row in mine] != [(row["arm"], row["step"]) for row in theirs]:
            found.append(f"{name}/metrics.jsonl: gaps or doubles")
        found += [
            f"{name}/metrics.jsonl, step {a['step']}: {key}"
            for a, b in zip(mine, theirs, strict=False)
            for key in sorted({*a, *b})
            if a.get(key) != b.get(key)
        ]
    for arm in folders[1:]:
        found += [f"{arm}/{what}" for what in differing_files(whole / arm, other / arm)]
    for figure in ("rollout_and_reward.png", "live_requests.png"):
        if not (other / figure).exists():
            found.append(f"{figure} is missing")
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, other)]
    if results[0]["identical"] != results[1]["identical"]:
        found.append("result.json: identical")
    return found


def differing_files(whole: Path, other: Path) -> Iterator[str]:
    """Names of an arm's files that are not equal: rollouts (times apart), digests, checkpoints."""
    names = [sorted(path.name for path in (arm / "rollouts").iterdir()) for arm in (whole, other)]
    if names[0] != names[1]:
        yield "rollouts: other files"
        return
    for step in range(1, len(names[0]) // 2 + 1):
        if timeless(read.rollout(whole, step)) != timeless(read.rollout(other, step)):
            yield f"rollouts, step {step}"
    if read.final(whole) != read.final(other):
        yield "final.json"
    last = checkpoint.steps(whole / CHECKPOINTS)[0]
    for name in BYTES:
        mine, theirs = (checkpoint.step_folder(arm / CHECKPOINTS, last) / name for arm in (whole, other))
        if not theirs.exists() or checkpoint.sha256(mine) != checkpoint.sha256(theirs):
            yield f"{name} of the last checkpoint"
    if checkpoint.steps(whole / CHECKPOINTS) != checkpoint.steps(other / CHECKPOINTS):
        yield "other checkpoints"


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what a clock said."""
    return [{key: value for key, value in row.items() if not key.endswith("_s") and key not in CLOCK} for row in rows]
