"""Bad input ends in one clear line that says what to change, and an exit code that is not 0.

Here in a process of its own; most kinds of bad input are in test_refusals.py.
"""

import errno
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from composed import composed_arm
from scripts import output_into, scripts

from experiments.arm.validate import check
from experiments.run import processes
from experiments.run.errors import one_line_errors, one_line_failure
from experiments.run.processes import warm_process
from rewards.reward import RewardError
from rewards.workers import WorkerError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "run.py", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )


def test_one_clear_line(tmp_path: Path) -> None:
    done = run("trainer.max_step=3", f"out={tmp_path}")
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: trainer.max_step: ")


def test_missing_peer_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("das.engine.settings.find_spec", lambda name: None)
    with pytest.raises(Exception, match="make peers"):
        check(composed_arm("suffix"))


@pytest.mark.parametrize("in_training", [True, False])
@pytest.mark.parametrize(
    ("error", "code", "named"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"), 1, "metrics.jsonl"),
        (RewardError("reward.function=mine:f returned nothing"), 2, "reward.function=mine:f"),
        (WorkerError("a solution was killed from outside"), 1, "solution"),
        (FileNotFoundError(errno.ENOENT, "No such file", "{run}/rollouts/x"), 1, "{run}"),
    ],
)
def test_what_ends_a_run_is_one_line(
    error: Exception, code: int, named: str, in_training: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a training the traceback of what the user wrote goes to the log."""
    if isinstance(error, FileNotFoundError):
        error = FileNotFoundError(error.errno, "No such file", str(tmp_path / "rollouts" / "x"))
    training = one_line_failure(tmp_path / "log.txt", str) if in_training else nullcontext()
    with pytest.raises(SystemExit) as stopped, one_line_errors(folder=tmp_path), training:
        raise error from KeyError("theirs")
    assert stopped.value.code == code
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert named.format(run=tmp_path) in printed
    assert printed.count("\n") == 1
    if isinstance(error, RewardError) and in_training:
        assert "KeyError: 'theirs'" in (tmp_path / "log.txt").read_text()


def test_an_arm_that_drafts_nothing_fails(tiny_policy: str, tmp_path: Path) -> None:
    # No draft has probability 1, and four tokens leave nothing to repeat.
    words = [
        "task=rollout", "arm=das", "task.steps=1", f"policy.path={tiny_policy}", f"out={tmp_path}",
        "drafter.min_prob=1.0", "trainer.max_completion_length=4", "engine.max_model_len=160",
    ]  # fmt: skip
    (ended,) = scripts(["run.py", *words], [{}])
    assert ended.code == 1
    assert "arm das" in ended.errors
    assert len(ended.errors.strip().splitlines()) == 1


ENDS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]


@pytest.mark.parametrize(("number", "code", "said"), ENDS)
def test_an_interrupt_names_the_command_that_resumes(
    number: int, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, where a launcher hands the signal to several ranks."""
    if number == signal.SIGINT:  # shells let background jobs ignore it
        signal.signal(number, signal.default_int_handler)
    with pytest.raises(SystemExit) as stopped, one_line_errors(lambda: "; to resume: python run.py resume=R"):
        signal.raise_signal(number)
    assert stopped.value.code == code
    line = f"error: {said}; the finished steps are in the run folder; to resume: python run.py resume=R\n"
    assert capsys.readouterr().err == line
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as stopped, one_line_errors():
        signal.raise_signal(number)
    assert stopped.value.code == code
    assert capsys.readouterr().err == ""


def test_output_that_cannot_be_written_fails_a_command() -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "analysis.summary", "--help"]
        done = subprocess.run(words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode != 0
    assert b"No space left on device" in done.stderr


def test_a_command_runs_without_an_output() -> None:
    closed = f"exec {shlex.quote(sys.executable)} -m analysis.summary --help >&-"
    done = subprocess.run(["bash", "-c", closed], cwd=ROOT, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    ["run.py", *(pytest.param(f"-m {each}", marks=pytest.mark.nightly) for each in ("analysis.summary", "das run"))],
)
def test_output_that_nobody_reads_ends_no_command(command: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    words = [sys.executable, *command.split(), "--help"]
    done = subprocess.run(words, cwd=ROOT, stdout=writes, stderr=subprocess.PIPE, check=False)
    os.close(writes)
    assert done.returncode == 0
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("das: the printed output failed, and the run goes on without: BrokenPipeError")


def in_a_session(words: list[str], cold: bool) -> None:
    """Body of a process: run.py as a shell starts it. cold: in a new interpreter."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    os.chdir(ROOT)
    if cold:
        os.execv(sys.executable, [sys.executable, *words])
    processes.START = "fork"  # of an arm
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


@pytest.mark.parametrize(
    ("number", "code", "said", "cold"),
    [(*ENDS[0], False), *(pytest.param(*each, True, marks=pytest.mark.nightly) for each in ENDS)],
)
def test_an_interrupt_keeps_the_finished_steps(
    tiny_policy: str, tmp_path: Path, number: int, code: int, said: str, cold: bool
) -> None:
    words = [
        "run.py", "trainer.max_steps=500", "trainer.per_device_train_batch_size=8", "reward=brevity",
        "trainer.max_completion_length=32", "engine.max_model_len=160",
        f"policy.path={tiny_policy}", f"out={tmp_path}",
    ]  # fmt: skip
    printed, error_file = tmp_path / "printed", tmp_path / "errors"
    with printed.open("w") as out, error_file.open("w") as errors, output_into(out, errors):
        process = warm_process(in_a_session, words, cold)
        process.start()
    while "\nstep   2/" not in printed.read_text():
        assert process.exitcode is None, error_file.read_text()
        time.sleep(0.05)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # like Ctrl-C: to the whole group
    else:
        os.kill(process.pid, number)
    process.join(180)
    assert process.exitcode == code
    line = f"error: {said}; the finished steps are in the run folder"
    assert error_file.read_text().strip().splitlines() == [line]
    (folder,) = (tmp_path / "compare").iterdir()
    from analysis import read

    assert len(read.metrics(folder)) >= 3
    for arm in ("none", "das"):
        assert len(read.metrics(folder / "arms" / arm)) >= 1
        (offline,) = (folder / "arms" / arm / "wandb").glob("offline-run-*/run-*.wandb")
        assert offline.stat().st_size > 0
