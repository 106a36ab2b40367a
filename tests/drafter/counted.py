"""The native core, built so that it counts the basic blocks it executes: costs are compared without a clock."""

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from das.drafter import native
from das.general.native import FLAGS

COUNTER = """
static long blocks;
void __sanitizer_cov_trace_pc(void) { blocks++; }
long executed(void) { return blocks; }
"""


@cache
def built() -> ctypes.CDLL:
    """The core with a counter. Its function `executed` returns the count."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, library = folder / "counter.c", folder / "counted.so"
        source.write_text(COUNTER)
        flags = [flag for flag in FLAGS if flag != "-shared"]
        for command in (
            ["gcc", *flags, "-c", source, "-o", folder / "counter.o"],
            ["gcc", *flags, "-fsanitize-coverage=trace-pc", "-c", native.SOURCE, "-o", folder / "native.o"],
            ["gcc", *FLAGS, folder / "counter.o", folder / "native.o", "-o", library, "-lm"],
        ):
            subprocess.run(command, check=True)
        core = native.typed(ctypes.CDLL(str(library)))
    core.executed.restype, core.executed.argtypes = ctypes.c_long, []
    return core


def counted_core(monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """Let new drafters use the core that counts."""
    core = built()
    monkeypatch.setattr(native, "lib", lambda: core)
    return core
