"""Fetch public recordings of real models' rollouts from the repositories that published them, at fixed commits.

recordings.json lists them: repository, licence, model, sampling temperature, and for each file its run, commit, path
and git's digest of its content. They are written as the rows that experiments/simulate/rollouts.py reads.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from das.general.files import write_bytes
from experiments.run.errors import UserError

LIST = Path(__file__).with_name("recordings.json")
PATIENCE_S = 30.0  # seconds to wait for a server's next bytes
CONNECTIONS = 8

Response = tuple[str, int, float, str | list[int]]  # prompt, sample, reward, text or token ids


@dataclass(frozen=True)
class RawFile:
    """A file of a public repository. blob: git's digest of its content, SHA-1 in hexadecimal."""

    run: str
    commit: str
    path: str
    blob: str


@dataclass(frozen=True)
class Recording:
    """A recording, made of files of one repository. form: the key of FORMS that reads the files."""

    name: str
    repository: str
    licence: str
    form: str
    model: str
    temperature: float | None
    files: tuple[RawFile, ...]


def recordings() -> list[Recording]:
    """Return all recordings of recordings.json."""
    listed = json.loads(LIST.read_text())
    return [
        Recording(name=name, **{**fields, "files": tuple(RawFile(*file) for file in fields["files"])})
        for name, fields in listed.items()
    ]


def fetch(recording: Recording, source: str, folder: Path) -> int:
    """Fetch a recording's files and write them as `NAME.jsonl.gz` into the folder. Returns the number of responses.

    source: address under which REPOSITORY/COMMIT/PATH is found, http(s)://... or file:///... Raises UserError for a
    file that cannot be fetched, or whose content has another digest.
    """
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        contents = list(threads.map(partial(_content, source, recording.repository), recording.files))
    rows = [
        {
            "problem_id": hashlib.md5(prompt.strip().encode(), usedforsecurity=False).hexdigest()[:10],
            "run": file.run,
            "sample": sample,
            "model": recording.model,
            "temperature": recording.temperature,
            "reward": reward,
            ("response" if isinstance(response, str) else "response_ids"): response,
        }
        for file, content in zip(recording.files, contents, strict=True)
        for prompt, sample, reward, response in FORMS[recording.form](content.decode(), file)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_bytes(folder / f"{recording.name}.jsonl.gz", gzip.compress(lines.encode(), mtime=0))
    return len(rows)


def _content(source: str, repository: str, file: RawFile) -> bytes:
    address = f"{source.rstrip('/')}/{repository}/{file.commit}/{quote(file.path)}"
    try:
        with urlopen(address, timeout=PATIENCE_S) as answer:
            content: bytes = answer.read()
    except (OSError, ValueError, HTTPException) as error:
        raise UserError(
            f"{address} cannot be fetched ({str(error)[:200] or type(error).__name__}): where the network is reached, "
            f"save all files of experiments/papers/{LIST.name} as FOLDER/REPOSITORY/COMMIT/PATH, and give "
            "task.source=file:///FOLDER"
        ) from None
    if hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() != file.blob:
        raise UserError(f"{address} has not the digest that {LIST.name} names, {file.blob}: it is another file")
    return content


def _areal(text: str, file: RawFile) -> Iterator[Response]:
    for row in map(json.loads, text.splitlines()):
        yield row["prompt"], row["sample_idx"], row["reward"], row["completion"]


def _reasoning_gym(text: str, file: RawFile) -> Iterator[Response]:
    (category,) = json.loads(text)["categories"]
    (problems,) = category["datasets"]
    for problem in problems["results"]:
        for sample, answer in enumerate(problem["completions"]):
            yield problem["question"], sample, answer["score"], answer["full_model_response"]


def _arctic(text: str, file: RawFile) -> Iterator[Response]:
    for sample, row in enumerate(map(json.loads, text.splitlines())):
        yield str(row["input_token_ids"]), sample, row["score"], row["output_token_ids"]


def _steering(text: str, file: RawFile) -> Iterator[Response]:
    problem, position = re.findall(r"/(prob\d+)_|/position_(\d+)/", file.path)
    for row in json.loads(text):
        yield f"{problem[0]}_pos{position[1]}", row["rollout_idx"], float(bool(row["is_correct"])), row["text"]


FORMS: dict[str, Callable[[str, RawFile], Iterator[Response]]] = {
    "areal": _areal,
    "reasoning_gym": _reasoning_gym,
    "arctic": _arctic,
    "steering": _steering,
}
