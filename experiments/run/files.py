"""Append rows to a run's files."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def add_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a file of JSON lines. They are on the disk when the call returns; a kill may tear the last one."""
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())
