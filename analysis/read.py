"""Read the files of a run's folder."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

MOST_UNPACKED = 1 << 31  # bytes of one file; the responses of a step have some 100 MB at the papers' largest scale


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of metrics.jsonl, one for each training step. Ignores an incomplete last line, left by a kill."""
    return lines(folder / "metrics.jsonl")


def lines(path: Path) -> list[dict[str, Any]]:
    """Read the JSON objects of a file, one in each line.

    Ignores an incomplete last line, left by a kill. Raises ValueError for any other line that is not a JSON object.
    """
    rows = []
    texts = path.read_bytes().splitlines()
    for number, text in enumerate(texts):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):  # ValueError: neither JSON nor UTF-8
            if number != len(texts) - 1:
                raise ValueError(f"{path} line {number + 1} is not JSON: the file is damaged") from None
            break
        if not isinstance(row, dict):
            raise ValueError(f"{path} line {number + 1} is not a JSON object: the file is damaged")
        rows.append(row)
    return rows


def timeline(folder: Path, step: int) -> dict[str, Any]:
    """Read the decode passes of one training step: step_time_s, step_live, step_tokens, step_emitted."""
    passes: dict[str, Any] = json.loads(unpacked(folder / "rollouts" / f"step_{step:05d}.timeline.json.gz"))
    return passes


def final(folder: Path) -> dict[str, Any]:
    """Read final.json of an arm: digests of its final weights and of its optimizer."""
    return _json_object(folder / "final.json")


def rollout(folder: Path, step: int) -> list[dict[str, Any]]:
    """Read the responses of one training step, in the format of recorded traces.

    Each response has problem_id, response_ids, reward, passes, drafted and more.
    """
    return [json.loads(line) for line in unpacked(folder / "rollouts" / f"step_{step:05d}.jsonl.gz").splitlines()]


def result(folder: Path) -> dict[str, Any]:
    """Read result.json, which a run writes at its end."""
    return _json_object(folder / "result.json")


def meta(folder: Path) -> dict[str, Any]:
    """Read meta.json: commit, versions, machine, command."""
    return _json_object(folder / "meta.json")


def config(folder: Path) -> dict[str, Any]:
    """Read the run's resolved config, config.yaml."""
    return settings(folder / "config.yaml")


def settings(path: Path) -> dict[str, Any]:
    """Read a YAML file of named values."""
    container = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def latency(folder: Path) -> dict[str, Any]:
    """Read latency.json of task=calibrate: the timed passes, and the latency forms fitted to them."""
    return _json_object(folder / "latency.json")


def _json_object(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def unpacked(path: Path) -> bytes:
    """Returns the content of a gzip file of one part, as gzip writes it. Raises ValueError, before it is unpacked, for
    one that unpacks into more bytes than it says at its end, or than MOST_UNPACKED."""
    with path.open("rb") as packed:
        packed.seek(max(0, packed.seek(0, os.SEEK_END) - 4))
        said = int.from_bytes(packed.read(), "little")
        if said > MOST_UNPACKED:
            raise ValueError(f"it unpacks into {said} bytes, more than {MOST_UNPACKED}")
        packed.seek(0)
        with gzip.open(packed) as file:
            content = file.read(said + 1)
    if len(content) > said:
        raise ValueError(f"it unpacks into more than the {said} bytes that it says: pack it anew with gzip")
    return content
