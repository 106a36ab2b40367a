"""Recorded rollouts as workloads: folders that our runs leave, recorded traces, and one's own JSONL.

A JSONL file (.jsonl or .jsonl.gz) has a row a response:
  problem_id     str or int, which prompt
  response_ids   list of token ids; or `response`, text, which is cut into words, digits and punctuation
  step           int, optional: the training step. Where no row has it, the responses of a problem follow one another in
                 the order of `run` (optional) and of the file: `group` of them a step and problem.
  tokenizer      str, optional: must be the same in all rows
A folder of such files is read as one, except that a file is a step where no row has one (2.jsonl before 10.jsonl).
"""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from das.replay.workload import Workload, workload
from experiments.recorded.drafter_replay import WORDS
from experiments.run.errors import UserError, reading

LEFT_OUT = {  # runs of recorded traces: those that repeat rows of others, and those of steered policies
    "arctic_prob0019_tokenids.jsonl.gz": re.compile(r"cleaned_0019_temp0|data"),
    "steer_r1d_qwen14b_pos0to3.jsonl.gz": re.compile(r".*/alpha_(neg)?1p0"),
}
STEP = re.compile(r"step_(\d+)\.jsonl\.gz")


def read_rollouts(path: Path, group: int = 0, batch: int = 0, prompt: int = 0) -> list[Workload]:
    """Steps of recorded rollouts, oldest first. UserError, in one line, for anything that cannot be read.

    group, batch: responses of a problem in a step, and problems in a step, where the rows do not say; 0: all, however
    many a problem has.
    prompt: tokens of a prompt, which no row holds.
    """
    files = rollout_files(path)
    steps = [list(_rows(file)) for file in files]
    if [] in steps:
        raise UserError(f"{files[steps.index([])]} is empty: a row a response is needed")
    rows = [row for step in steps for row in step]
    if path.is_dir() and (STEP.fullmatch(files[0].name) or not any("step" in row for row in rows)):
        return _workloads(steps, prompt, path)
    if any("step" in row for row in rows):
        if not all(isinstance(row.get("step"), int) for row in rows):
            raise UserError(f"{path}: every row needs a step, a whole number, or none has one")
        by_step: dict[int, list[dict[str, Any]]] = {step: [] for step in sorted({row["step"] for row in rows})}
        for row in rows:
            by_step[row["step"]].append(row)
        return _workloads(list(by_step.values()), prompt, path)
    (whole,) = _workloads([sorted(rows, key=lambda row: str(row.get("run", "")))], prompt, path)
    return grouped(whole, group, batch)


def rollout_files(path: Path) -> list[Path]:
    """The file itself, or a folder's: those of a run's steps, else all that are JSONL. UserError for none."""
    if not path.is_dir():
        return [path]
    folders = (path / "rollouts", path, *sorted(path.glob("arms/*/rollouts")))  # arms of a comparison are alike
    found = ([file for file in sorted(folder.glob("*.gz")) if STEP.fullmatch(file.name)] for folder in folders)
    own = sorted((file for file in path.iterdir() if file.name.endswith((".jsonl", ".jsonl.gz"))), key=_by_number)
    files = next(filter(None, found), [file for file in own if file.name != "metrics.jsonl"])
    if not files:
        raise UserError(f"{path} holds no rollouts: neither step_00001.jsonl.gz ... nor other .jsonl files")
    return files


def is_text(path: Path) -> bool:
    """Whether responses come as text, by the first row."""
    return "response_ids" not in next(_rows(rollout_files(path)[0]))


def _by_number(path: Path) -> list[tuple[int, str]]:
    """2.jsonl before 10.jsonl."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", path.name)]


def grouped(work: Workload, group: int, batch: int) -> list[Workload]:
    """Epoch after epoch, each with the next `group` responses of every problem that has so many left, in steps of
    `batch` problems; 0: all."""
    members: dict[str, list[int]] = {}
    for i, problem in enumerate(work.problems):
        members.setdefault(problem, []).append(i)
    batch = batch or len(members)
    if not group:
        problems = list(members.values())
        return [
            work.part([i for ids in problems[at : at + batch] for i in ids]) for at in range(0, len(problems), batch)
        ]
    steps, epoch = [], 0
    while True:
        groups = [ids[epoch * group : (epoch + 1) * group] for ids in members.values()]
        groups = [ids for ids in groups if len(ids) == group]
        if not groups:
            break
        for at in range(0, len(groups), batch):
            steps.append(work.part([i for ids in groups[at : at + batch] for i in ids]))
        epoch += 1
    if not steps:
        raise UserError(f"no problem has {group} responses: lower the group size")
    return steps


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with reading(path), (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise UserError(f"{path} line {number} is not JSON") from None
            if not isinstance(row, dict) or "problem_id" not in row or not {"response_ids", "response"} & set(row):
                raise UserError(f"{path} line {number}: problem_id, and response_ids or response, are needed")
            if not isinstance(row["problem_id"], str | int):
                raise UserError(f"{path} line {number}: problem_id must be a text or a whole number")
            if "response_ids" not in row and not isinstance(row["response"], str):
                raise UserError(f"{path} line {number}: the response is no text")
            if not (path.name in LEFT_OUT and LEFT_OUT[path.name].fullmatch(str(row.get("run")))):
                yield row


def _workloads(steps: list[list[dict[str, Any]]], prompt: int, path: Path) -> list[Workload]:
    """One vocabulary for all steps: a word of one step is the same word in the next."""
    rows = [row for step in steps for row in step]
    with_ids = sum("response_ids" in row for row in rows)
    if 0 < with_ids < len(rows):
        raise UserError(f"{path} mixes token ids and text: all responses must be cut by one tokeniser")
    names = {str(row["tokenizer"]) for row in rows if "tokenizer" in row}
    if len(names) > 1:
        raise UserError(f"{path} mixes tokenisers: {', '.join(sorted(names))}")
    words: dict[str, int] = {}

    def ids(row: dict[str, Any]) -> Any:
        if with_ids:
            return np.asarray(row["response_ids"])
        return np.asarray([words.setdefault(w, len(words)) for w in WORDS.findall(row["response"])], np.int32)

    found = []
    for number, step in enumerate(steps, 1):
        try:
            kept = [(str(row["problem_id"]), r) for row in step if (r := ids(row)).size]
            if not kept:
                raise UserError(f"{path}: all responses of step {number} of {len(steps)} are empty")
            found.append(workload([problem for problem, _ in kept], [r for _, r in kept], prompt))
        except UserError:
            raise
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: {error}") from error
    return found
