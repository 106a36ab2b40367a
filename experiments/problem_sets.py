"""Problem files on disk, read with their errors as one line each."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet

from experiments.errors import UserError
from rewards.code import humaneval_tests, leetcode_tests

T = TypeVar("T")
_FORMATS = (zlib.error, pyarrow.ArrowException)
_LARGEST = 1 << 30  # bytes of a file, unpacked; the sets have some 10 MB


def _read(path: Path, read: Callable[[Path], T]) -> T:
    """What `read` makes of the file. Raises UserError where it is missing or malformed."""
    try:
        return read(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, *_FORMATS) as error:
        said = " ".join(str(error).split())[:160]
        raise UserError(f"{path} is not what it should be: {type(error).__name__}: {said}") from error


def _unpacked(path: Path) -> str:
    """Text of a gzip file. Raises ValueError for an absurd size, a byte order or an encoding that is not UTF-8."""
    with gzip.open(path) as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"more than {_LARGEST} bytes unpacked")
    return data.decode()


def deepcoder(path: Path) -> list[tuple[str, str, str]]:
    """(name, reference solution, tests) of deepcoder_leetcode.json.gz; the tests as rewards/code.py takes them."""

    def read(path: Path) -> list[tuple[str, str, str]]:
        rows = json.loads(_unpacked(path))
        return [
            (f"leetcode/{i}", _text(row["solutions"]), leetcode_tests(_text(row["tests"]["functional"])))
            for i, row in enumerate(_some(rows))
        ]

    return _read(path, read)


def humaneval(path: Path) -> list[tuple[str, str, str]]:
    """(name, reference solution, tests) of HumanEval.jsonl.gz."""

    def read(path: Path) -> list[tuple[str, str, str]]:
        rows = [json.loads(line) for line in _unpacked(path).splitlines()]
        return [
            (_text(row["task_id"]), _text(row["prompt"]) + _text(row["canonical_solution"]), humaneval_tests(row))
            for row in _some(rows)
        ]

    return _read(path, read)


def gold_answers(path: Path) -> list[str]:
    """Gold answers of a maths set: `reward_model.ground_truth` of a parquet file."""

    def read(path: Path) -> list[str]:
        rows = pyarrow.parquet.read_table(path, columns=["reward_model"]).to_pylist()
        return [_text(row["reward_model"]["ground_truth"]) for row in _some(rows)]

    return _read(path, read)


def _some(rows: list[Any]) -> list[Any]:
    if not isinstance(rows, list) or not rows:
        raise ValueError("no rows")
    return rows


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} where text is due")
    return value
