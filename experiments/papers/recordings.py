"""task=recordings: fetch public recordings of real models' rollouts, for the replays of the papers.

recordings.json lists their repositories, at fixed commits: repository, licence, model, sampling temperature, and for
each file its run, commit, path and git's digest of its content. They are written as the rows that
experiments/simulate/rollouts.py reads.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from das.general.files import write_bytes
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig

LIST = Path(__file__).with_name("recordings.json")
PATIENCE_S = 30.0  # seconds to wait for a server's next bytes

Response = tuple[str, int, float, str | list[int]]  # prompt, sample, reward, text or token ids


def fetch(name: str, recording: Mapping[str, Any], source: str, folder: Path) -> int:
    """Fetch a recording's files and write them as `NAME.jsonl.gz` into the folder. Returns the number of responses.

    source: address under which REPOSITORY/COMMIT/PATH is found, http(s)://... or file:///... Raises UserError for a
    file that cannot be fetched, or whose content has another digest.
    """
    files = recording["files"]  # run, commit, path and git's digest of each
    addresses = [
        f"{source.rstrip('/')}/{recording['repository']}/{commit}/{quote(path)}" for _, commit, path, _ in files
    ]
    with ThreadPoolExecutor(8) as threads:
        contents = list(threads.map(_content, addresses, [blob for *_, blob in files]))
    rows = [
        {
            "problem_id": hashlib.md5(prompt.strip().encode(), usedforsecurity=False).hexdigest()[:10],
            "run": run,
            "sample": sample,
            "model": recording["model"],
            "temperature": recording["temperature"],
            "reward": reward,
            ("response" if isinstance(response, str) else "response_ids"): response,
        }
        for (run, _, path, _), content in zip(files, contents, strict=True)
        for prompt, sample, reward, response in FORMS[recording["form"]](content.decode(), path)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_bytes(folder / f"{name}.jsonl.gz", gzip.compress(lines.encode(), mtime=0))
    return len(rows)


def _content(address: str, blob: str) -> bytes:
    """Return the content of a file. blob: git's digest of it, SHA-1 in hexadecimal."""
    try:
        with urlopen(address, timeout=PATIENCE_S) as answer:
            content: bytes = answer.read()
    except (OSError, ValueError, HTTPException) as error:
        raise UserError(
            f"{address} cannot be fetched ({str(error)[:200] or type(error).__name__}): where the network is reached, "
            f"save all files of experiments/papers/{LIST.name} as FOLDER/REPOSITORY/COMMIT/PATH, and give "
            "task.source=file:///FOLDER"
        ) from None
    if hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() != blob:
        raise UserError(f"{address} has not the digest that {LIST.name} names, {blob}: it is another file")
    return content


def _areal(text: str, path: str) -> Iterator[Response]:
    for row in map(json.loads, text.splitlines()):
        yield row["prompt"], row["sample_idx"], row["reward"], row["completion"]


def _reasoning_gym(text: str, path: str) -> Iterator[Response]:
    (category,) = json.loads(text)["categories"]
    (problems,) = category["datasets"]
    for problem in problems["results"]:
        for sample, answer in enumerate(problem["completions"]):
            yield problem["question"], sample, answer["score"], answer["full_model_response"]


def _arctic(text: str, path: str) -> Iterator[Response]:
    for sample, row in enumerate(map(json.loads, text.splitlines())):
        yield str(row["input_token_ids"]), sample, row["score"], row["output_token_ids"]


def _steering(text: str, path: str) -> Iterator[Response]:
    problem, position = re.findall(r"/(prob\d+)_|/position_(\d+)/", path)
    for row in json.loads(text):
        yield f"{problem[0]}_pos{position[1]}", row["rollout_idx"], float(bool(row["is_correct"])), row["text"]


FORMS = {"areal": _areal, "reasoning_gym": _reasoning_gym, "arctic": _arctic, "steering": _steering}


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Write a file for each recording that the folder lacks. Prints a line for each: source, licence, size."""
    task, progress, target = config.task, Progress(0), Path(config.task.folder)
    known = json.loads(LIST.read_text())
    names = list(known) if task.only is None else task.only
    if unknown := set(names) - set(known):
        raise UserError(f"task.only: {', '.join(sorted(unknown))} unknown; known are {', '.join(known)}")
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        recording = known[name]
        about = f"{recording['model']}; github.com/{recording['repository']}, {recording['licence']}"
        if (target / f"{name}.jsonl.gz").exists():
            progress.note(f"{name}: there already ({about})")
            continue
        progress.note(f"{name}: fetching {len(recording['files'])} files ({about})")
        progress.note(f"{name}: {fetch(name, recording, task.source, target)} responses")
    progress.note(f"recordings: {target}")
