"""Reward for problems of the library reasoning-gym, which makes the problems and also scores the answers.

Task, options, seed and index identify a problem: from them the library can make it again in any process. Some tasks
depend on the order of Python's sets. So problems are made in processes with a fixed hash seed, and a worker reports an
error if its question differs from the original one.

Only workers import the library. Some of its scorers evaluate the policy's text as Python. So every answer is scored in
a child process without rights (rewards/isolation.py), which cannot open files or sockets or start processes.
A child that hangs or fills the memory is killed, and its answer scores 0. So does an answer that the scorer fails on.
The answer may be a program, so it can make the scorer raise anything: what no scorer raises by itself is counted as a
failure. Before a task's first answer is scored, the problem's own answer has to score in a child as it does outside.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from typing import Any, NoReturn, TextIO

from das.process import die_with_parent
from rewards.answers import final_answer
from rewards.isolation import Limits, confine
from rewards.reward import reward_of
from rewards.workers import FAILED, FAILURES, Workers, command

BLOCK = 100  # number of problems made with one seed; some tasks make all of them at once
_PATIENCE = 10  # seconds by the clock that a worker may take for each second of its CPU time
_CHECK_S = 0.05  # time between two checks of a child
_LIMITS = {"memory_mb": 2048, "file_mb": 0}  # further limits of a child, beside its CPU time
# What scorers raise on an answer that they cannot read.
_UNREADABLE = (
    TypeError, ValueError, AttributeError, LookupError, ArithmeticError, NameError, SyntaxError, AssertionError,
    RecursionError, NotImplementedError,
)  # fmt: skip


def library_command(*arguments: str) -> list[str]:
    """Return the command line of a worker, or of a process that makes problems. arguments: see `main`."""
    # One thread only: a forked child loses its parent's threads, and may not start its own.
    return ["env", "PYTHONHASHSEED=0", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", *command("library", *arguments)]


def digest(question: str) -> str:
    """Return the first 16 hexadecimal digits of a question's SHA-256."""
    return hashlib.sha256(question.encode()).hexdigest()[:16]


class LibraryReward:
    """Rewards each completion with the library's score of its answer, 0 to 1, computed in worker processes. A
    completion without an answer scores 0."""

    def __init__(self, parallel: int, timeout_s: float):
        """Start the workers. timeout_s: CPU seconds that a worker may take to make a problem, and as many to score its
        answer. Raises WorkerError if a worker cannot start."""
        line = library_command(str(timeout_s))
        self._workers = Workers(line, parallel, 3 * _PATIENCE * timeout_s, timeout_s)

    def __call__(self, completions: Sequence[str], entries: Sequence[str]) -> list[float]:
        """Score the answer in each completion. entries: the problems, as JSON. Raises ValueError if a problem cannot be
        made again."""
        answers = [final_answer(completion) for completion in completions]
        asked = [index for index, answer in enumerate(answers) if answer is not None]
        rewards = [0.0] * len(answers)
        replies = self._workers.ask([(answers[index], entries[index]) for index in asked])
        for index, reply in zip(asked, replies, strict=True):
            if reply is not None and "error" in reply:
                raise ValueError(reply["error"])
            if reply is not None:
                rewards[index] = reply["score"] or 0.0
                self._workers.counts.add(FAILURES, int(reply["score"] is None))
        return rewards

    def take_counts(self) -> dict[str, int]:
        """Return how often workers died, failed or were too slow since the last call (keys: see rewards/workers.py)."""
        return self._workers.counts.take()

    def close(self) -> None:
        """Kill the workers."""
        self._workers.close()


# ---- in a worker process ----


@lru_cache(maxsize=64)
def _block(task: str, options: str, seed: int) -> Any:
    """Make the library's dataset of BLOCK problems of a task. options: the task's options, as JSON. seed: the dataset's
    seed."""
    import reasoning_gym

    return reasoning_gym.create_dataset(task, seed=seed, size=BLOCK, **json.loads(options))


@lru_cache(maxsize=4096)
def _problem(task: str, options: str, seed: int, index: int) -> tuple[Any, Mapping[str, Any], float | None]:
    """Return the library's dataset with problem number `index`, this problem, and the score of its own answer: None if
    it has none that can be scored. seed: the seed of the first BLOCK problems."""
    block, place = divmod(index, BLOCK)
    dataset = _block(task, options, seed + BLOCK * block)
    problem = dataset[place]
    score = None
    with suppress(Exception):  # some tasks know no answer that could be scored
        # This also imports modules that a child cannot import.
        score = float(dataset.score_answer(answer=problem["answer"], entry=problem))
    return dataset, problem, score


_scored_confined: set[str] = set()  # tasks whose scorer works in a child


def _reply(answer: str, entry: str, timeout_s: float) -> dict[str, Any]:
    """Return the worker's reply about one answer: its score (None if the child that scores it died), or the error in
    the problem."""
    named = json.loads(entry)
    task = named["task"]
    dataset, problem, own_score = _problem(task, named["options"], named["seed"], named["index"])
    if digest(problem["question"]) != named["question"]:
        return {"error": f"reasoning-gym made another problem than the one that was asked: {entry}"}
    if own_score and task not in _scored_confined:
        score = confined(lambda: dataset.score_answer(answer=problem["answer"], entry=problem), timeout_s)
        if score != min(1.0, own_score):
            return {FAILED: f"reasoning-gym scores its own answer to {task} {own_score}, and {score} in a child"}
        _scored_confined.add(task)
    return {"score": confined(lambda: dataset.score_answer(answer=answer, entry=problem), timeout_s)}


def confined(score: Callable[[], float], timeout_s: float) -> float | None:
    """Call `score` in a child without rights. Returns its result in [0, 1]; 0 if it raises what scorers raise on an
    answer; None if it raises anything else, if the child died, or if the result is no reward (rewards/reward.py).

    timeout_s: CPU seconds of the child. It is also killed after 10 times as many seconds by the clock.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(score, writing, timeout_s)
    os.close(writing)
    end = time.monotonic() + _PATIENCE * timeout_s
    while not select.select([reading], [], [], _CHECK_S)[0]:
        if time.clock_gettime(~pid << 3 | 2) > timeout_s or time.monotonic() > end:  # the clock of the child's CPU time
            os.kill(pid, signal.SIGKILL)
    written = os.read(reading, 64)
    os.close(reading)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        reward = reward_of(float(written))
    except ValueError:  # the child wrote nothing, or foreign code wrote something else
        return None
    return None if reward is None else min(1.0, max(0.0, reward))


def _child(score: Callable[[], float], writing: int, timeout_s: float) -> NoReturn:
    try:
        os.dup2(writing, 3)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.closerange(4, 256)
        confine(Limits(cpu_s=math.ceil(timeout_s), **_LIMITS), jailed=False, nobody=os.getuid() == 0)
        os.dup2(0, 2)  # errors until here are our own and go to the log
        os.dup2(0, 1)
        try:
            value = score()
        except _UNREADABLE:
            value = 0.0
        os.write(3, repr(reward_of(value)).encode())  # if it is no reward, nothing is written
    finally:
        os._exit(0)


def _make(task: str, options: str, seed: int, count: int, lines: TextIO) -> None:
    """Make `count` problems, and write a line {"index", "question"} for each. If that fails, the last line is
    {"error"}, or {"unknown": all tasks} if there is no such task."""
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        print(json.dumps({"unknown": sorted(DATASETS), "version": version("reasoning-gym")}), file=lines)
        return
    for index in range(count):
        try:
            _, problem, _ = _problem(task, options, seed, index)
        except Exception as error:  # each task has its own ways to refuse options
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=lines)
            return
        print(json.dumps({"index": index, "question": problem["question"]}), file=lines)


def main() -> None:
    """Body of a worker process (rewards/workers.py). Its argument is the CPU time of an answer, in seconds.

    With the four arguments task, options, seed and count, the process makes problems instead.
    """
    die_with_parent()
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the library prints must not be read as an answer
    if len(sys.argv) > 2:
        task, options, seed, count = sys.argv[1:]
        _make(task, options, int(seed), int(count), answers)
        return
    timeout_s = float(sys.argv[1])
    import reasoning_gym  # noqa: F401  before the first question, because it takes seconds

    if confined(lambda: 1.0, timeout_s) != 1.0:
        why = "reward=reasoning_gym cannot confine its scorers here; it needs Linux on x86_64 (see the log above)"
        print(json.dumps({"ready": False, "why": why}), file=answers)
        return
    print(json.dumps({"ready": True}), file=answers)
    for line in questions:
        answer, entry = json.loads(line)
        print(json.dumps(_reply(answer, entry, timeout_s)), file=answers)
