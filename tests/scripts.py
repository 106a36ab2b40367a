"""Scripts that tests run in processes of their own, and what they leave."""

import json
import os
import runpy
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from unittest.mock import patch

import psutil

from experiments.run import processes
from experiments.run.processes import warm_context, warm_process

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600  # a script that takes longer hangs
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
SIZES = (  # of a short training: two problems a step, four responses to each
    "reward=brevity",
    "trainer.per_device_train_batch_size=8",
    "trainer.num_generations=4",
    "trainer.max_completion_length=48",
    "engine.max_model_len=160",
)
GIVEN_PRICES = ("budget=own", "budget.name=tests.given_prices:GivenPrices")  # drafts pay, however busy a machine is
COMPARED_STEPS = 3  # two of one epoch and one of the next, of the comparison that tests share (conftest.compared)
RANK_RUN = ROOT / "tests" / "trl" / "rank_run.py"


def run_script(*arguments: str | Path, limit_s: float = LIMIT_S) -> str:
    """Run a Python script with these arguments in the repository, and return what it prints. It must end well, and in
    time. TWO_RANKS before the script: run it on two ranks."""
    words = [str(argument) for argument in arguments]
    if tuple(words[: len(TWO_RANKS)]) == TWO_RANKS:
        ended = scripts(words[len(TWO_RANKS) :], world(2), limit_s)
    else:
        ended = scripts(words, [{}], limit_s)
    codes = [each.code for each in ended]
    if any(code != 0 for code in codes):
        raise AssertionError(f"ended with {codes}: " + "".join(each.errors for each in ended)[-8000:])
    return "".join(each.out for each in ended)


@dataclass(frozen=True)
class Ended:
    """A script that has ended. code: None if it did not end in time, or when another rank failed."""

    code: int | None
    out: str
    errors: str


def scripts(
    words: list[str], ranks: Sequence[dict[str, str]], limit_s: float = LIMIT_S, alone: bool = False
) -> list[Ended]:
    """Run a script once for each environment of `ranks`, at the same time. alone: nobody ends those whose other rank
    has failed.

    Each process is a fork of one that has imported vLLM and TRL.
    """
    warm_context()  # it keeps its environment, so it must not start in that of a rank
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile("w+")) for _ in range(2 * len(ranks))]
        runs = []
        for rank, environment in enumerate(ranks):
            with patch.dict(os.environ, environment), output_into(*files[2 * rank : 2 * rank + 2]):
                runs.append(warm_process(as_script, words))
                runs[-1].start()
        ends = time.monotonic() + limit_s
        while (left := [run for run in runs if run.exitcode is None]) and time.monotonic() < ends:
            if not alone and any(run.exitcode for run in runs):
                break  # the other rank would wait for it
            wait([run.sentinel for run in left], timeout=max(0, ends - time.monotonic()))
        codes = [run.exitcode for run in runs]
        for run in left:
            for started in psutil.Process(run.pid).children(recursive=True):
                started.kill()
            run.kill()
        for run in runs:
            run.join()
        for file in files:
            file.seek(0)
        return [Ended(code, *(file.read() for file in files[2 * n : 2 * n + 2])) for n, code in enumerate(codes)]


def as_script(words: list[str]) -> None:
    """Do what the interpreter does with these arguments: a script's path, -c and a program, or -m and a module."""
    os.chdir(ROOT)
    processes.START = "fork"  # of an arm: the script has imported what arms need, and computes nothing before
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    if words[0] == "-c":
        sys.argv, program = words[:1] + words[2:], words[1]
        exec(compile(program, "-c", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str((ROOT / words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def world(size: int) -> list[dict[str, str]]:
    """The environment that torchrun gives to each of so many ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    common |= {"LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0"}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


@contextmanager
def output_into(out: IO[str], errors: IO[str]) -> Iterator[None]:
    """Send what this process prints into two files, while others start, which inherit them."""
    saved = os.dup(1), os.dup(2)
    os.dup2(out.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    try:
        yield
    finally:
        for number, descriptor in enumerate(saved, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def ends(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process that may be nobody's child ends in time. A zombie has ended."""
    status, deadline = Path(f"/proc/{pid}/stat"), time.monotonic() + within_s
    while status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def of_ranks(folder: Path, name: str) -> list[Any]:
    """What each rank wrote into FOLDER/NAME_rankN.json."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}_rank*.json"))]


def exact(trainings: Sequence[Any]) -> list[Any]:
    """What trainings of rank_run.py, or ranks of one, have in all bits: tokens, log-probs and losses of each step, and
    the weights."""
    names = ("tokens", "logprobs", "losses")
    return [[*([step[name] for name in names] for step in each["steps"]), each["weights"]] for each in trainings]
