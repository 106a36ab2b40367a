"""Read recorded rollouts as workloads: the folders that our runs leave, recorded traces, and a user's own JSONL.

A JSONL file (.jsonl or .jsonl.gz) has one row per response:
  problem_id     text or whole number: which prompt
  response_ids   list of token ids; or `response`, a text, which is cut into words, digits and punctuation
  step           whole number, optional: the training step. If no row has it, the responses of a problem follow one
                 another in the order of `run` (optional) and of the file, and `group` of them form a step.
  tokenizer      text, optional: must be the same in all rows
  distributions  text, optional: the distributions of the tokens (das.drafter.distributions), as our runs record them
  seed           whole number, optional, beside `distributions`: the seed of the noise with which they were sampled
A folder of such files is read as one file. If no row has a step, each file is a step (2.jsonl before 10.jsonl).
"""

import json
import re
import sys
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from analysis.read import unpacked
from das.drafter.distributions import Distributions
from experiments.run.errors import UserError, reading
from experiments.simulate.workload import Sampling, Workload, workload

# Cuts a text into words, single digits, punctuation and space, as Qwen's tokenizer does before it merges. Used for
# traces without token ids.
WORDS = re.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\w]?[^\W\d_]+|\d| ?[^\s\w]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+|_")
STEP_FILE = re.compile(r"step_(\d+)\.jsonl\.gz")
# File name -> the runs that read_rollouts leaves out: they are copies of rows, or responses of steered policies.
LEFT_OUT_RUNS = {
    "arctic_prob0019_tokenids.jsonl.gz": re.compile("cleaned_0019_temp0|data"),
    "steer_r1d_qwen14b_pos0to3.jsonl.gz": re.compile(r".*/alpha_(neg)?1p0"),
}


def read_rollouts(path: Path, group: int = 0, prompt: int = 0) -> list[Workload]:
    """Read the steps of recorded rollouts, oldest first. Raises UserError for anything that cannot be read.

    group: responses to a problem in a step, used only if the rows name no steps. 0 means all, even if problems have
    different numbers of responses. prompt: the number of tokens that every prompt is taken to have, because rows do not
    hold the prompts.
    """
    files = rollout_files(path)
    steps = [list(_rows(file)) for file in files]
    if [] in steps:
        raise UserError(f"{files[steps.index([])]} is empty: one row per response is needed")
    rows = [row for step in steps for row in step]
    with_steps = any("step" in row for row in rows)
    if path.is_dir() and (STEP_FILE.fullmatch(files[0].name) or not with_steps):
        return _workloads(steps, prompt, path)
    if with_steps:
        if not all(isinstance(row.get("step"), int) for row in rows):
            raise UserError(f"{path}: either every row needs a step, a whole number, or no row may have one")
        by_step = groupby(sorted(rows, key=lambda row: row["step"]), lambda row: row["step"])
        return _workloads([list(of_step) for _, of_step in by_step], prompt, path)
    works = _workloads([sorted(rows, key=lambda row: str(row.get("run", "")))], prompt, path)
    return grouped(works[0], group) if group else works


def responses_of(path: Path) -> dict[str, list[np.ndarray]]:
    """Read the responses to each problem, in the order of the steps. Raises UserError, as read_rollouts does."""
    responses: dict[str, list[np.ndarray]] = {}
    for step in read_rollouts(path):
        for i, problem in enumerate(step.problems):
            responses.setdefault(problem, []).append(step.response(i))
    return responses


def rollout_files(path: Path) -> list[Path]:
    """Return [path] for a file. For a folder, return the files of a run's steps; if it has none, all its JSONL files.

    Raises UserError if the folder has neither.
    """
    if not path.is_dir():
        return [path]
    folders = (path / "rollouts", path, *sorted(path.glob("arms/*/rollouts")))  # all arms have the same text
    step_files = (
        [file for file in sorted(folder.glob("*.gz")) if STEP_FILE.fullmatch(file.name)] for folder in folders
    )
    jsonl = sorted((file for file in path.iterdir() if file.name.endswith((".jsonl", ".jsonl.gz"))), key=_by_number)
    files = next(filter(None, step_files), [file for file in jsonl if file.name != "metrics.jsonl"])
    if not files:
        raise UserError(f"{path} holds no rollouts: neither step_00001.jsonl.gz ... nor other .jsonl files")
    return files


def is_text(path: Path) -> bool:
    """Return whether the responses are text instead of token ids, judged by the first row."""
    return "response_ids" not in next(_rows(rollout_files(path)[0]))


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return a sort key for paths, which puts 2.jsonl before 10.jsonl."""
    return [(int(number or 0), text) for text, number in re.findall(r"(\D*)(\d*)", path.name)]


def grouped(work: Workload, group: int) -> list[Workload]:
    """Cut the workload into epochs, in each of which every problem contributes its next `group` responses. A problem
    that has fewer left is dropped. Raises UserError if none has so many."""
    members = work.members().values()
    epochs = []
    for first in range(0, max(map(len, members)) - group + 1, group):
        groups = [ids[first : first + group] for ids in members]
        epochs.append(work.part([i for ids in groups if len(ids) == group for i in ids]))
    if not epochs:
        raise UserError(f"no problem has {group} responses: lower the group size")
    return epochs


def _lines(path: Path) -> TextIO:
    return TextIOWrapper(BytesIO(unpacked(path)), "utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with reading(path), _lines(path) as file:
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
            if not (path.name in LEFT_OUT_RUNS and LEFT_OUT_RUNS[path.name].fullmatch(str(row.get("run")))):
                yield row


def _sampling(row: dict[str, Any], tokens: int) -> Sampling | None:
    """Return how a response of so many tokens was sampled; None if its row does not say that. Raises ValueError."""
    if row.get("distributions") is None:
        return None
    seed = row.get("seed")
    if seed is not None and not isinstance(seed, int):
        raise ValueError(f"a seed must be a whole number, got {seed!r:.100}")
    return Sampling(Distributions.from_text(row["distributions"], tokens), seed)


def _workloads(steps: list[list[dict[str, Any]]], prompt: int, path: Path) -> list[Workload]:
    """Return a workload for each step. All steps share one vocabulary, so a word has the same id in each of them."""
    rows = [row for step in steps for row in step]
    with_ids = sum("response_ids" in row for row in rows)
    if 0 < with_ids < len(rows):
        raise UserError(f"{path} mixes token ids and text: all responses must be cut by one tokeniser")
    tokenizers = {str(row["tokenizer"]) for row in rows if "tokenizer" in row}
    if len(tokenizers) > 1:
        raise UserError(f"{path} mixes tokenisers: {', '.join(sorted(tokenizers))}")
    words: dict[str, int] = {}

    def token_ids(row: dict[str, Any]) -> Any:
        if with_ids:
            return np.asarray(row["response_ids"])
        return np.asarray([words.setdefault(w, len(words)) for w in WORDS.findall(row["response"])], np.int32)

    works, empty = [], 0
    for number, step in enumerate(steps, 1):
        try:
            responses = [(row, ids) for row in step if (ids := token_ids(row)).size]
            if not responses:
                raise UserError(f"{path}: all responses of step {number} of {len(steps)} are empty")
            empty += len(step) - len(responses)
            problems = [str(row["problem_id"]) for row, _ in responses]
            sampling = [_sampling(row, ids.size) for row, ids in responses]
            works.append(workload(problems, [ids for _, ids in responses], prompt, sampling))
        except UserError:
            raise
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: {error}") from error
    if empty:
        print(
            f"{path}: {empty} of {sum(map(len, steps))} responses are empty and left out", file=sys.stderr, flush=True
        )
    return works


# Trace -> number of prompts of every problem. These differ by a few words, and follow one another in the trace.
PROMPT_VARIANTS = {"steer_r1d_qwen14b_pos0to3": 4}
TRACES = ("areal_deepscaler_base", "areal_nemotron_base", "steer_r1d_qwen14b_pos0to3")


def chains_of_thought(folder: Path, problems: int) -> Workload:
    """Return the first `problems` problems of each trace in `folder` as one workload. No two traces share token ids.

    If a trace has several prompts of a problem (PROMPT_VARIANTS), only the first prompt is used. Raises UserError if a
    trace is missing.
    """
    files = [folder / f"{name}.jsonl.gz" for name in TRACES]
    if not all(file.exists() for file in files):
        raise UserError(f"task.traces={folder}: {', '.join(TRACES)} are not there: run task=recordings")
    names, responses, offset = [], [], 0
    for trace, file in zip(TRACES, files, strict=True):
        (recorded,) = read_rollouts(file)
        distinct = list(dict.fromkeys(recorded.problems))[:: PROMPT_VARIANTS.get(trace, 1)]
        chosen = set(distinct[:problems])
        for i, problem in enumerate(recorded.problems):
            if problem in chosen:
                names.append(f"{trace}/{problem}")
                responses.append(recorded.response(i) + offset)
        offset += int(recorded.tokens.max()) + 1
    return workload(names, responses)
