"""The result of a part of task=check_gpu, and the size of the part's work."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from das.files import add_rows

Size = TypeVar("Size")


@dataclass(frozen=True)
class Verdict:
    """A part's result. ok: whether the part passed. line: one line that states the finding. numbers: the evidence."""

    ok: bool
    line: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """The size and place of a part's work. gpu: full size on a GPU; otherwise tiny, which only tests the part's code.

    folder: for the part's files. cache: for the models that parts share.
    """

    gpu: bool
    folder: Path
    cache: Path

    def note(self, row: dict[str, Any]) -> None:
        """Append a line to the part's lines.jsonl at once, so that it is there if the part dies."""
        add_rows(self.folder / "lines.jsonl", [row])

    def pick(self, on_gpu: Size, on_cpu: Size) -> Size:
        """Return the size for the device: `on_gpu` on a GPU, otherwise `on_cpu`."""
        return on_gpu if self.gpu else on_cpu
