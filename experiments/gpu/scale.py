"""The size of a part of task=check_gpu, and its lines of JSON: each number is written as soon as it is known."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from experiments.run.files import add_rows

Size = TypeVar("Size")
Row = dict[str, Any]
LINES = "lines.jsonl"  # in the folder of results; all parts write into it


@dataclass(frozen=True)
class Scale:
    """gpu: full size on a GPU; otherwise tiny, which only tests the code. folder: of the results. cache: for models.
    recorded: a recording whose text is rolled out; None: made-up text. part: whose lines these are.
    shown: the descriptor to which lines are printed."""

    gpu: bool
    folder: Path
    cache: Path
    recorded: Path | None = None
    part: str = ""
    shown: int = 1

    def pick(self, on_gpu: Size, on_cpu: Size) -> Size:
        """Return the size for the device."""
        return on_gpu if self.gpu else on_cpu

    def note(self, **row: Any) -> None:
        """Write a line of this part, and print it."""
        add_rows(self.folder / LINES, [line := {"part": self.part, **row}])
        os.write(self.shown, f"{json.dumps(line)}\n".encode())

    def noted(self, **wanted: Any) -> list[Row]:
        """Return this part's lines that have these entries."""
        rows = map(json.loads, (self.folder / LINES).read_text().splitlines())
        return [row for row in rows if row["part"] == self.part and wanted.items() <= row.items()]


@dataclass(frozen=True)
class Verdict:
    """ok: whether a part passed. line: what it found."""

    ok: bool
    line: str
