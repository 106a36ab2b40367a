"""The result of a part of task=check_gpu, and the size and place of the part's work."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from experiments.run.files import add_rows

Size = TypeVar("Size")
DONE = "done.json"  # in a part's folder once it ended; holds its row of the result, and the identity of code and device


@dataclass(frozen=True)
class Verdict:
    """A part's result. ok: whether the part passed. line: one line that states the finding. numbers: the evidence."""

    ok: bool
    line: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """The size and place of a part's work. gpu: full size on a GPU; otherwise tiny, which only tests the part's code.

    folder: for the part's files; those of the other parts lie beside it. cache: for the models that parts share. form:
    how engines are built (engines.FORMS), as the first part found out.
    """

    gpu: bool
    folder: Path
    cache: Path
    form: str = "graphs"

    def note(self, row: dict[str, Any]) -> None:
        """Append a line to the part's lines.jsonl at once, so that it is there if the part dies."""
        add_rows(self.folder / "lines.jsonl", [row])

    def pick(self, on_gpu: Size, on_cpu: Size) -> Size:
        """Return the size for the device: `on_gpu` on a GPU, otherwise `on_cpu`."""
        return on_gpu if self.gpu else on_cpu

    def numbers(self, part: str) -> dict[str, Any]:
        """Return the numbers that another part found; empty if it was not run, or failed."""
        path = self.folder.parent / part / DONE
        row = json.loads(path.read_text())["row"] if path.exists() else {}
        found: dict[str, Any] = row.get("numbers", {}) if row.get("ok") else {}
        return found
