"""A run that is told to end does so at once, in one line, and leaves no process; a sweep goes on after failures."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from scripts import ROOT

from das.cluster import connection

ENDS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]
POOL = """
import time
from experiments.run.errors import one_line_errors
from experiments.run.processes import in_processes
with one_line_errors():
    print("began", flush=True)
    in_processes([lambda: time.sleep(600)] * 3)
"""
# A task whose end waits for ever for a process that does not listen.
DEAF = """
import subprocess, sys
from experiments.run import errors
errors.GRACE_S = float(sys.argv[1])
child = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
with errors.one_line_errors(), subprocess.Popen(child) as deaf:
    print("began", flush=True)
    deaf.wait()
"""
# A fork of a warm process, which has nothing to import.
FORK = """
import time
from experiments.run import processes
def body(pipe):
    print("began", flush=True)
    time.sleep(600)
def ask():
    processes.WARM = "json"
    process, pipe = processes.spawned(body)
    process.join()
"""
# run.py with a task that fails in one way for each seed.
SWEEP = """
import os, runpy, signal, sys, types
sys.path.insert(0, os.getcwd())
from experiments.settings.tasks import TASKS
from experiments.run.errors import RunFailed, UserError
class Stub:
    name, help = "calibrate", ""
    def load(self):
        return run
def run(config, overrides, folder):
    match config.seed:
        case 1: raise UserError("seed 1 is bad input")
        case 2: raise RunFailed("seed 2 failed")
        case 3: raise ZeroDivisionError("seed 3 has a bug")
        case 4: os.kill(os.getpid(), signal.SIGTERM)
    print("done", config.seed, flush=True)
TASKS["calibrate"] = Stub()
sys.argv[0] = "run.py"
runpy.run_path("run.py", run_name="__main__")
"""


def start(program: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # background jobs ignore it
    )  # fmt: skip


def told(process: "subprocess.Popen[str]", *numbers: int) -> tuple[list[str], list[str]]:
    """Signal a process once it has begun, and wait for its end. Returns its error lines, and the processes it left."""
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"
    deadline = time.monotonic() + 60
    while not (started := psutil.Process(process.pid).children(recursive=True)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for number in numbers:
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # like Ctrl-C: to the whole group
        else:
            process.send_signal(number)
        time.sleep(0.5 if len(numbers) > 1 else 0)
    _, errors = process.communicate(timeout=60)
    _, left = psutil.wait_procs(started, timeout=10)
    return errors.splitlines(), [str(each.cmdline()) for each in left]


@pytest.mark.parametrize(("number", "code", "said"), ENDS)
def test_a_pool_of_processes_ends_at_once(number: int, code: int, said: str) -> None:
    process = start(POOL)
    assert told(process, number) == ([f"error: {said}; the finished steps are in the run folder"], [])
    assert process.returncode == code


@pytest.mark.parametrize(("grace_s", "numbers"), [("0.5", [signal.SIGTERM]), ("600", [signal.SIGTERM] * 2)])
def test_what_does_not_end_by_itself_is_ended(grace_s: str, numbers: list[int]) -> None:
    """After a while, or if the run is told a second time."""
    process = start(DEAF, grace_s)
    assert told(process, *numbers) == (["error: ended by SIGTERM; the finished steps are in the run folder"], [])
    assert process.returncode == 143


def test_a_fork_of_the_warm_process_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(FORK)
    process = start(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import forks; forks.ask()")
    assert told(process, signal.SIGKILL) == ([], [])


def sweep(folder: Path, seeds: str, *further: str) -> tuple[int, list[str], list[str]]:
    process = start(SWEEP, "-m", "task=calibrate", f"seed={seeds}", f"out={folder}", *further)
    out, errors = process.communicate(timeout=300)
    return process.returncode, out.splitlines(), errors.splitlines()


def test_a_sweep_goes_on_after_jobs_that_fail(tmp_path: Path) -> None:
    code, out, errors = sweep(tmp_path, "0,1,2,3,5")
    assert out == ["done 0", "done 5"]
    assert code == 2
    lines = [line for line in errors if line.startswith("error: ")]
    names = [f"job {number} (task=calibrate seed={number} out={tmp_path})" for number in range(4)]
    (folder,) = (tmp_path / "multirun").iterdir()
    assert lines == [
        "error: seed 1 is bad input",
        f"error: {names[1]} failed, which ends no other job",
        "error: seed 2 failed",
        f"error: {names[2]} failed, which ends no other job",
        f"error: {names[3]} failed, which ends no other job",
        f"error: 3 of the jobs failed: {', '.join(names[1:])}; the others are in {folder}",
    ]
    assert errors[4].startswith("Traceback")  # a bug keeps its own
    assert "ZeroDivisionError: seed 3 has a bug" in errors


def test_a_sweep_checks_the_settings_of_all_jobs_before_the_first(tmp_path: Path) -> None:
    code, out, errors = sweep(tmp_path, "0,x", "trainer.max_steps=1,0")
    assert (code, out) == (2, [])
    assert [line.partition("): ")[2].partition(":")[0] for line in errors] == [
        "trainer.max_steps=0",
        "seed=x",
        "trainer.max_steps=0",
    ]
    assert errors[-1].endswith("; no job of the sweep was started")
    assert not list(tmp_path.glob("multirun/*"))


def test_a_sweep_that_is_told_to_end_begins_no_other_job(tmp_path: Path) -> None:
    code, out, errors = sweep(tmp_path, "0,4,5")
    assert (code, out) == (143, ["done 0"])
    assert errors == ["error: ended by SIGTERM; the finished steps are in the run folder"]


def test_ray_leaves_sigterm_to_the_process() -> None:
    """It takes the signal for itself when it starts."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with connection._own_end():
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] * 2
