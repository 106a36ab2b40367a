"""Read problem files from disk. Every error becomes one line that names the file."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from experiments.run.errors import UserError, reading

KINDS = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz")
_PIECE = 16  # rows of a parquet file that are read at once
_MAX_BYTES = 1 << 30  # the largest unpacked file; published sets in text form have about 10 MB


def rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a file whose name ends in one of KINDS. Raises UserError if it is malformed or has no rows."""
    kind = next((kind for kind in KINDS if path.name.endswith(kind)), None)
    if kind is None:
        raise UserError(f"data.path={path}: the name must end in one of {', '.join(KINDS)}")
    with reading(path):
        return [_mapping(row) for row in _some(_parse(path, kind))]


def _parse(path: Path, kind: str) -> Any:
    if kind == ".parquet":
        try:
            return _table(path)
        except pyarrow.ArrowException as error:
            raise ValueError(str(error)) from error
    text = _unpacked(path) if kind.endswith(".gz") else path.read_text()
    return json.loads(text) if ".json" in kind and ".jsonl" not in kind else _lines(text)


def _table(path: Path) -> list[Any]:
    """Read a parquet file piece by piece, because a short one can hold a long text a million times. Raises ValueError
    if it unpacks to more than 1 GiB."""
    rows: list[Any] = []
    size = 0
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_PIECE):
            piece = batch.to_pylist()  # Arrow's own count leaves out what rows share
            size += _size(piece)
            if size > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES} bytes unpacked")
            rows += piece
    return rows


def _size(value: Any) -> int:
    """The bytes of a value, or of those in it."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict | list):
        return sum(map(_size, value.values() if isinstance(value, dict) else value))
    return 8


def _lines(text: str) -> list[Any]:
    """Parse a text with one JSON value on each line. Returns the values. Empty lines are ignored."""
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _unpacked(path: Path) -> str:
    """Read the text of a gzip file. Raises ValueError if it unpacks to more than 1 GiB or is not UTF-8."""
    with gzip.open(path) as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES} bytes unpacked")
    return data.decode()


def _some(rows: Any) -> list[Any]:
    """Return the rows unchanged. Raises ValueError if they are no list, or if the list is empty."""
    if not isinstance(rows, list) or not rows:
        raise ValueError("no rows")
    return rows


def _mapping(row: object) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TypeError(f"a {type(row).__name__} where a row with named columns is expected")
    return row
