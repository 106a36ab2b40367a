"""A part's result, and the size of its work."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Size = TypeVar("Size")


@dataclass(frozen=True)
class Verdict:
    """ok: whether the machine keeps das's promise. line: the finding, in one line. numbers: the evidence."""

    ok: bool
    line: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """gpu: whether parts run at full size on a GPU; on a CPU they are tiny and only test themselves.

    folder: for a part's files. cache: for the models that parts share.
    """

    gpu: bool
    folder: Path
    cache: Path

    def pick(self, on_gpu: Size, on_cpu: Size) -> Size:
        """The size that fits the device."""
        return on_gpu if self.gpu else on_cpu
