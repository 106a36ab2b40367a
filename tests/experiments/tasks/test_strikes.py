"""task=kill_test and task=fault_test: what must hold after a strike is looked at; damage leaves a checkpoint from which
the run can go on; a run that a test strikes ends with the test."""

import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT, ends
from steps_on_disk import write_steps

from experiments.faults.sitecustomize import FAULTS
from experiments.harness.resume import CHECKPOINTS, whole_steps
from experiments.run import child
from experiments.run.errors import CheckpointError
from experiments.tasks import strikes
from experiments.tasks.strikes import FAILS, STRIKES, SURVIVES, Strike, damage, group_of, run_of, strike
from experiments.training import checkpoint


def make_arm(folder: Path) -> None:
    """An arm of three steps with checkpoints of the last two."""
    write_steps(folder, 3)
    for step in (2, 3):
        scratch = folder / "scratch"
        scratch.mkdir()
        (scratch / "weights").write_bytes(bytes(range(200)))
        checkpoint.seal(scratch, folder / CHECKPOINTS, step, {"config": {}})


def usable(folder: Path, step: int) -> bool:
    try:
        checkpoint.verify(folder / CHECKPOINTS, step)
    except CheckpointError:
        return False
    return whole_steps(folder)[0] >= step


def test_damage_leaves_the_older_checkpoint_usable(tmp_path: Path) -> None:
    kinds = set()
    for seed in range(30):
        arms = [tmp_path / f"{seed}" / "arms" / name for name in ("none", "das")]
        for arm in arms:
            make_arm(arm)
        damage(tmp_path / f"{seed}", random.Random(seed))
        assert all(usable(arm, 2) for arm in arms)
        torn = any(b'{"step": \n' in (arm / "metrics.jsonl").read_bytes() + b"\n" for arm in arms)
        kinds.add((torn, all(usable(arm, 3) for arm in arms)))
    assert kinds == {(True, True), (False, False)}  # a torn row costs nothing, other damage costs the newest checkpoint


def test_a_run_that_has_not_begun_is_left_alone(tmp_path: Path) -> None:
    damage(tmp_path, random.Random(0))
    assert not list(tmp_path.iterdir())


def test_every_fault_has_a_place() -> None:
    """Without one, what a task plants in a run's processes never strikes."""
    for module, name, _ in FAULTS.values():
        assert callable(attrgetter(name)(import_module(module)))
    assert {way.fault for ways in STRIKES.values() for way in ways.values()} == {*FAULTS, ""}


INSIDE = Strike(fault="engine", calls=[1], ends=FAILS)
STRUCK, SAYS = "touch struck_way", "echo one line >&2; exit 1"


@pytest.mark.parametrize(
    ("way", "does", "wrong"),
    [
        (Strike([group_of]), "sleep 60", []),
        (Strike([run_of]), "sleep 60 & wait", ["left processes: sleep"]),
        (Strike([group_of]), "exit 0", ["it ended before the strike", "ended with 0 instead of -9"]),
        (Strike([run_of], [signal.SIGSTOP, signal.SIGCONT], SURVIVES), "sleep 1", []),
        (INSIDE, f"sleep 0.2 & {STRUCK}; {SAYS}", []),
        (INSIDE, SAYS, ["it ended before the strike"]),
        (INSIDE, f"{STRUCK}; echo two >&2; {SAYS}", ["no one clear line: two\none line"]),
        (INSIDE, f"{STRUCK}; mkdir -p checkpoints/step_00001; {SAYS}", ["no one clear line: one line"]),
        (INSIDE, f"{STRUCK}; exit 2", ["ended with 2 instead of 1", "no one clear line: "]),
    ],
)
def test_what_must_hold_after_a_strike(
    way: Strike, does: str, wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell in place of run.py does what must not be."""

    def start(given: object, folder: Path, environment: dict[str, str]) -> Any:
        return child.start(["sh", "-c", f"cd {folder}; {does}"], environment=os.environ | environment)

    monkeypatch.setattr(strikes, "start", start)
    monkeypatch.setattr(strikes, "PAUSED_S", 0.1)
    monkeypatch.setattr(strikes, "ORPHAN_S", 1.0)
    way = replace(way, when=lambda folder, rows: True)
    assert strike("way", way, [], tmp_path, 1, 0.1, random.Random(0)).wrong == wrong
    assert not strikes.living(tmp_path)


PARENT = """
import os, sys
from pathlib import Path
from experiments.tasks import strikes
strikes.ROOT = Path(sys.argv[1])
process = strikes.start([], Path(sys.argv[1]) / "run")
process.stdout.readline()
print(process.pid, flush=True)
os.kill(os.getpid(), 15)
"""


def test_a_run_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    parent = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ends(int(parent.stdout)), "the run outlived the process that started it"
