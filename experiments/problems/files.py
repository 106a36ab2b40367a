"""Problem files on disk, read with their errors as one line each."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet

from experiments.run.errors import UserError, reading

T = TypeVar("T")
KINDS = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz")
_LARGEST = 1 << 30  # bytes of a file, unpacked; the sets in text form have some 10 MB


def rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of one of KINDS, at least one. Raises UserError for anything else, in one line."""
    kind = next((kind for kind in KINDS if path.name.endswith(kind)), None)
    if kind is None:
        raise UserError(f"data.path={path}: the name must end in one of {', '.join(KINDS)}")
    return read(path, lambda path: [_mapping(row) for row in some(_parse(path, kind))])


def _parse(path: Path, kind: str) -> Any:
    if kind == ".parquet":
        try:
            return pyarrow.parquet.read_table(path).to_pylist()
        except pyarrow.ArrowException as error:
            raise ValueError(str(error)) from error
    text = unpacked(path) if kind.endswith(".gz") else path.read_text()
    return json.loads(text) if ".json" in kind and ".jsonl" not in kind else lines(text)


def lines(text: str) -> list[Any]:
    """A JSON value a line; empty lines do not count."""
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def read(path: Path, parse: Callable[[Path], T]) -> T:
    """What `parse` makes of the file. Raises UserError where it is missing or malformed."""
    with reading(path):
        return parse(path)


def unpacked(path: Path) -> str:
    """Text of a gzip file. Raises ValueError for an absurd size, a byte order or an encoding that is not UTF-8."""
    with gzip.open(path) as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"more than {_LARGEST} bytes unpacked")
    return data.decode()


def some(rows: Any) -> list[Any]:
    """The rows. Raises ValueError where there are none, or no list."""
    if not isinstance(rows, list) or not rows:
        raise ValueError("no rows")
    return rows


def text(value: object) -> str:
    """The value. Raises TypeError where it is no text."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} where text is due")
    return value


def _mapping(row: object) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TypeError(f"a {type(row).__name__} where a row with named columns is due")
    return row
