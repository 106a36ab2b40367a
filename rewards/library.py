"""Reward by a library's own scorer: reasoning-gym judges the answers to the problems that it makes.

A problem is named by task, options, seed and index; from these the library makes it again, here and in every worker.
Some of its tasks depend on the order of Python's sets. So problems are made in processes whose hashes have a fixed
seed, and a worker that makes another question than the one that was asked says so.

The library is imported in processes of their own only. A scorer that hangs, or fills the memory, loses its worker.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any, TextIO

from das.process import die_with_parent
from rewards.workers import Workers, command

BLOCK = 100  # problems that the library makes with one seed; some of its tasks make all of them at once
_PATIENCE = 10  # seconds by the clock that a worker may take for each second of its CPU time
_MEMORY_BYTES = 4 << 30  # address space of a worker
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BRACES = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)


def library_command(*arguments: str) -> list[str]:
    """Command line of a process that makes problems, if there are arguments (see `main`), or else of a worker."""
    return ["env", "PYTHONHASHSEED=0", *command("library", *arguments)]


def final_answer(completion: str) -> str | None:
    r"""The text of the last complete <answer>...</answer> or \boxed{...}, whichever ends later. None without either."""
    ends = [(match.end(), match[1]) for match in _TAGGED.finditer(completion)]
    opened: list[tuple[int, bool]] = []  # where the text of each open brace begins, and whether it is a box
    for token in _BRACES.finditer(completion):
        if token[0] == "}" and opened:
            begin, is_box = opened.pop()
            ends += [(token.end(), completion[begin : token.start()])] * is_box
        elif token[0].endswith("{") and token[0] != "\\{":
            opened.append((token.end(), token[0] != "{"))
    return max(ends)[1].strip() if ends else None


def digest(question: str) -> str:
    """Short SHA-256 of a question."""
    return hashlib.sha256(question.encode()).hexdigest()[:16]


class LibraryReward:
    """The library's score of each answer, 0 to 1, computed in worker processes. Without an answer it is 0."""

    def __init__(self, parallel: int, timeout_s: float):
        """timeout_s: CPU seconds for one answer. Then its worker is killed and it scores 0. Raises WorkerError."""
        self._workers = Workers(library_command(), parallel, _PATIENCE * timeout_s, timeout_s)

    def __call__(self, completions: Sequence[str], entries: Sequence[str]) -> list[float]:
        """entries: the problems, as `reference` names them. Raises ValueError for one that cannot be made again."""
        answers = [final_answer(completion) for completion in completions]
        asked = [index for index, answer in enumerate(answers) if answer is not None]
        rewards = [0.0] * len(answers)
        replies = self._workers.ask([(answers[index], entries[index]) for index in asked])
        for index, reply in zip(asked, replies, strict=True):
            if reply is not None and "error" in reply:
                raise ValueError(reply["error"])
            rewards[index] = 0.0 if reply is None else reply["score"]
        return rewards

    def take_counts(self) -> dict[str, int]:
        """What went wrong since the last call: see rewards/workers.py."""
        return self._workers.counts.take()

    def close(self) -> None:
        """Kill the workers."""
        self._workers.close()


# ---- in a process of its own ----


@lru_cache(maxsize=64)
def _block(task: str, options: str, seed: int) -> Any:
    """BLOCK problems of a task."""
    import reasoning_gym

    return reasoning_gym.create_dataset(task, seed=seed, size=BLOCK, **json.loads(options))


@lru_cache(maxsize=4096)
def _problem(task: str, options: str, seed: int, index: int) -> tuple[Any, Mapping[str, Any]]:
    """The library's dataset, and its problem number `index`, counted from the problems with the first seed."""
    block, place = divmod(index, BLOCK)
    dataset = _block(task, options, seed + BLOCK * block)
    return dataset, dataset[place]


def _score(answer: str, entry: str) -> dict[str, Any]:
    """The worker's reply."""
    named = json.loads(entry)
    dataset, problem = _problem(named["task"], named["options"], named["seed"], named["index"])
    if digest(problem["question"]) != named["question"]:
        return {"error": f"reasoning-gym made another problem than the one that was asked: {entry}"}
    try:
        return {"score": min(1.0, max(0.0, float(dataset.score_answer(answer=answer, entry=problem))))}
    except MemoryError:
        raise
    except Exception:  # scorers parse whatever the policy wrote
        return {"score": 0.0}


def _make(task: str, options: str, seed: int, count: int, lines: TextIO) -> None:
    """Write {"index", "question"} of `count` problems, a line each; {"unknown": all tasks} or {"error"} instead."""
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        print(json.dumps({"unknown": sorted(DATASETS), "version": version("reasoning-gym")}), file=lines)
        return
    for index in range(count):
        try:
            _, problem = _problem(task, options, seed, index)
        except Exception as error:  # each task has its own ways to refuse options
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=lines)
            return
        print(json.dumps({"index": index, "question": problem["question"]}), file=lines)


def main() -> None:
    """Body of a worker (rewards/workers.py); with arguments task, options, seed and count it makes problems instead."""
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the library prints must not be read as an answer
    if sys.argv[1:]:
        task, options, seed, count = sys.argv[1:]
        _make(task, options, int(seed), int(count), answers)
        return
    import reasoning_gym  # noqa: F401  before the first question, because it takes seconds

    print(json.dumps({"ready": True}), file=answers)
    for line in questions:
        try:
            reply = _score(*json.loads(line))
        except MemoryError:  # earlier answers may have taken the memory: a new worker will tell
            return
        print(json.dumps(reply), file=answers)
