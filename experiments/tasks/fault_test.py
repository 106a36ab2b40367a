"""task=fault_test: kill or disturb engines of a cluster. The run must end with identical results or one error line."""

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from analysis import read
from experiments.harness.resume import CHECKPOINTS
from experiments.harness.runs.struck_runs import ORPHAN_S, finish, leave_alone, plan, start, wait_until
from experiments.run.errors import RunFailed
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.config import RunConfig
from experiments.training import checkpoint

# Kind of fault here -> its kind in experiments/faults/sitecustomize.py, and the range from which the number of the pass
# or weight sync that it strikes is drawn.
PASSES, SYNCS, EXCHANGES = range(20, 100), range(1, 4), range(2, 4)  # each in a run of three steps already
FROM_INSIDE = {
    "raise": ("engine", PASSES),
    "memory": ("memory", PASSES),
    "start": ("start", range(1, 2)),
    "history": ("history", EXCHANGES),
    "loaded": ("loaded", SYNCS),
}
KINDS = ("kill", "freeze", "pause", "driver", *FROM_INSIDE)
ENGINE = "ray::RolloutEngine"  # name of an engine's process
MARK = "DAS_STRUCK_RUN"  # environment variable of all processes of a struck run: its folder
PAUSED_S = 30.0  # seconds for which an engine and the trainer are stopped
STRUCK = "struck"  # this file in a run's folder says that a fault of FROM_INSIDE has struck
EXACT = ("completions_digest", "rewards_digest", "loss", "grad_norm")  # metrics that must be equal


@dataclass
class Fault:
    """The outcome of one fault. ended: "survived", "one line" (the run ended with one error line), or what went
    wrong."""

    kind: str
    struck: bool  # False: the run ended before the fault came
    step: int  # the last step that was finished
    ended: str
    orphans: list[str]  # names of processes that were left behind


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Train once in one process, undisturbed. Then disturb `task.faults` runs on a cluster, and write result.json.

    Raises RunFailed unless every run was struck, ended with identical results or one error line, and left no process.
    """
    progress, path = Progress(0), Path(folder)
    kinds, arguments = plan(config, overrides, KINDS, "train")
    run_folder = RunFolder(path, config.resolved)
    whole = path / "whole"
    leave_alone([argument for argument in arguments if not argument.startswith("cluster")], whole)
    rng = random.Random(config.seed)
    faults: list[Fault] = []
    counts = {"tried": 0, "survived": 0, "one_line": 0, "orphans": 0}
    order: list[str] = []  # kinds in random order, each once before one comes again
    for number in range(config.task.faults):
        order = order or rng.sample(kinds, len(kinds))
        fault = strike(order.pop(), arguments, path / f"struck_{number}", whole, rng)
        missed = "" if fault.struck else "not struck, "
        progress.note(f"{fault.kind:6s} after step {fault.step}: {missed}{fault.ended} {' '.join(fault.orphans)}")
        faults.append(fault)
        counts = {
            "tried": sum(fault.struck for fault in faults),
            "survived": sum(fault.struck and fault.ended == "survived" for fault in faults),
            "one_line": sum(fault.struck and fault.ended == "one line" for fault in faults),
            "orphans": sum(len(fault.orphans) for fault in faults),
        }
        run_folder.write_result({"faults": counts, "struck": [vars(fault) for fault in faults]})
    progress.note(f"{counts['survived']} of {counts['tried']} survived bit for bit, {counts['one_line']} in one line")
    if counts["survived"] + counts["one_line"] < len(faults) or counts["orphans"]:
        raise RunFailed(f"a run was lost, differs, left a process, or was not struck: see {path}/result.json")


def strike(kind: str, arguments: Sequence[str], folder: Path, whole: Path, rng: random.Random) -> Fault:
    """Start a run on a cluster, strike it once with a fault of this kind, and return how it ended.

    arguments: those for run.py. folder: the run's folder. whole: the undisturbed run's folder. rng: draws the moment of
    the fault and its victim.
    """
    environment = {MARK: str(folder)}
    if kind in FROM_INSIDE:
        fault, counts = FROM_INSIDE[kind]
        folder.mkdir()
        environment |= {"DAS_FAULT": f"{fault}:{rng.choice(counts)}:{folder / STRUCK}"}
    process = start(arguments, folder, environment)
    driver = psutil.Process(process.pid)
    metrics = folder / "metrics.jsonl"
    rows = read.metrics(whole)
    after = rng.randrange(1, len(rows))
    wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.read_bytes().count(b"\n") >= after))
    time.sleep(rng.random() * rows[after]["step_s"])  # a run on a cluster is no faster: the step after it goes on
    victims = [driver] if kind == "driver" else engines_of(folder)
    struck = kind not in FROM_INSIDE and bool(victims) and process.poll() is None
    if struck and kind == "pause":
        pause(rng.sample([driver, rng.choice(victims)], 2))
    elif struck:
        os.kill(rng.choice(victims).pid, signal.SIGSTOP if kind == "freeze" else signal.SIGKILL)
    done = finish(process)
    _, alive = psutil.wait_procs(engines_of(folder), timeout=ORPHAN_S)
    orphans = [child.name() for child in alive]
    step = len(read.metrics(folder)) if metrics.exists() else 0
    if kind == "driver":
        done = finish(start([f"resume={folder}"], folder))
    return Fault(kind, struck or (folder / STRUCK).exists(), step, verdict(done, whole, folder), orphans)


def engines_of(folder: Path) -> list[psutil.Process]:
    """Return the living engine processes of the struck run in this folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is another user's
            if process.name().startswith(ENGINE) and process.environ().get(MARK) == str(folder):
                found.append(process)
    return found


def pause(victims: Sequence[psutil.Process]) -> None:
    """Stop these processes for PAUSED_S seconds, then let them go in the same order."""
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.suspend()
    time.sleep(PAUSED_S)
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.resume()


def verdict(done: Any, whole: Path, folder: Path) -> str:
    """Say how a struck run ended: "survived", "one line", or what went wrong. done: its exit code and output."""
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        hint = "resume=" if checkpoint.steps(folder / CHECKPOINTS) else ""
        return "one line" if len(lines) == 1 and hint in lines[0] else f"failed: {done.stderr.strip()[-300:]}"
    for row, other in zip(read.metrics(whole), read.metrics(folder), strict=True):
        for name in EXACT:
            if row[name] != other[name]:
                return f"step {row['step']} differs in {name}"
    finals = [json.loads((each / "final.json").read_text()) for each in (whole, folder)]
    return "survived" if finals[0] == finals[1] else "the final weights differ"
