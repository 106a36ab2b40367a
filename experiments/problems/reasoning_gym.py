"""data=reasoning_gym: problems of one task of the package reasoning-gym, which makes them.

A question's hash decides whether it is for training or for evaluation. So no run trains on a question on which another
run, with any seed, is evaluated.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from datasets import Dataset

from experiments.problems.choose import share
from experiments.problems.load import prompt_counter
from experiments.problems.problem_set import Problem
from experiments.run.errors import UserError
from rewards.library import digest, library_command

HELD_OUT = 0.2  # share of the questions that training never sees
TRIES = 20  # at most 20 questions are made for each wanted one; then the task counts as too small
SEEDS = 2**20  # distance between the first seeds of runs whose seeds differ by 1


def check(data: Mapping[str, Any]) -> None:
    """Raise UserError if the package is missing, the task unknown, or an option refused by the task."""
    with _questions(data, 0, 1) as made:
        next(made)


@lru_cache(maxsize=2)  # a run makes its problems twice: to announce them, and to train on them
def load(
    data_json: str, seed: int, evaluation: bool, room: int, policy: str, template_json: str
) -> tuple[Dataset, str, int]:
    """Return rows with `prompt`, `problem_id` and `entry`, one line about them, and the number passed over as too long.

    With `entry` the scorer makes the problem again. data_json: a config of configs/data. evaluation: whether to use the
    held-out questions. room: the most tokens of a prompt. policy: the policy whose tokenizer counts them.
    template_json: arguments of its chat template. Raises UserError if there are too few questions.
    """
    data = json.loads(data_json)
    count = prompt_counter(policy, json.loads(template_json))
    wanted = data["problems"]
    problems: dict[str, Problem] = {}
    too_long = 0
    first_seed = seed * SEEDS % 2**31
    with _questions(data, first_seed, int(TRIES * (wanted + 5) / (HELD_OUT if evaluation else 1))) as made:
        for index, question in made:
            key = digest(" ".join(question.split()))
            if key in problems or (share(f"reasoning_gym {key}") < HELD_OUT) != evaluation:
                continue
            problem = _problem(data, first_seed, index, question, key)
            if count(problem) > room:
                too_long += 1
                continue
            problems[key] = problem
            if len(problems) == wanted:
                break
    if len(problems) < wanted:
        key = "eval" if evaluation else "data"
        raise UserError(
            f"{key}.problems={wanted}: only {len(problems)} distinct questions of data.task={data['task']} were found"
            + (f", and {too_long} longer than {room} tokens (raise engine.max_model_len)" if too_long else "")
        )
    passed_over = f"; passed over: {too_long} longer than {room} tokens" if too_long else ""
    summary = f"data reasoning_gym: {len(problems)} problems of {data['task']}{passed_over}"
    return Dataset.from_list([problem.row("reasoning_gym") for problem in problems.values()]), summary, too_long


def _problem(data: Mapping[str, Any], seed: int, index: int, question: str, key: str) -> Problem:
    entry = {"task": data["task"], "options": json.dumps(data["options"], sort_keys=True), "seed": seed}
    entry |= {"index": index, "question": digest(question)}
    prompt = data["prompt"].replace("{problem}", question)
    return Problem(f"{data['task']}-{key}", (("user", prompt),), question, json.dumps(entry))


@contextmanager
def _questions(data: Mapping[str, Any], seed: int, count: int) -> Iterator[Iterator[tuple[int, str]]]:
    """Start a process that makes at most `count` problems. Gives a `with` block an iterator of (index, question)."""
    if find_spec("reasoning_gym") is None:
        raise UserError(
            "data=reasoning_gym needs the package reasoning-gym, which is not installed: run `make reasoning-gym`"
        )
    options = json.dumps(data["options"], sort_keys=True)
    line = library_command(str(data["task"]), options, str(seed), str(count))
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield _read(process.stdout.readline, data, count)
        finally:
            process.kill()


def _read(readline: Callable[[], bytes], data: Mapping[str, Any], count: int) -> Iterator[tuple[int, str]]:
    task = data["task"]
    for _ in range(count):
        line = readline()
        if not line.endswith(b"\n"):
            raise UserError(f"data.task={task}: reasoning-gym ended while it made problems; try it alone in Python")
        made = json.loads(line)
        if "unknown" in made:
            near = get_close_matches(str(task), made["unknown"], n=3, cutoff=0.4) or made["unknown"][:3]
            raise UserError(
                f"data.task={task}: reasoning-gym {made['version']} has no such task; the nearest are {', '.join(near)}"
            )
        if "error" in made:
            raise UserError(f"data.task={task} data.options={data['options']}: reasoning-gym refuses: {made['error']}")
        yield made["index"], made["question"]
