"""Load the project's C cores through ctypes, whose calls release the GIL.

A wheel holds the cores, compiled for several levels of processor (`LEVELS`). A checkout compiles them with gcc on
first use, for the processor at hand. All of them give the same bits (tests/test_levels.py), because FLAGS let gcc
neither fuse nor reorder operations, and each of them rounds alike, whichever instructions carry it out.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

# -ffp-contract=off: a fused multiply-add would round differently from the torch and Python versions of a formula.
FLAGS = (
    "-std=c11",
    "-O3",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-pthread",
)
V3 = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# By machine, the best first: values of -march for which a wheel has cores, and the flags of /proc/cpuinfo that a
# processor needs for them.
LEVELS: dict[str, tuple[tuple[str, frozenset[str]], ...]] = {
    "x86_64": (("x86-64-v4", V4), ("x86-64-v3", V3), ("x86-64", frozenset())),
    "aarch64": (("armv8-a", frozenset()),),
}


class NativeBuildError(RuntimeError):
    """A C core cannot be built; the message says what to install or what is wrong."""


def cpu_model() -> str:
    """Returns the model name and feature flags of the first core, on which -march=native depends; empty without
    /proc."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return ""
    lines = cpuinfo.read_text().split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part")))


def in_wheel(source: Path, level: str) -> Path:
    """Returns where a wheel holds the core of `source` for a level of processor."""
    return source.with_name("_cores") / f"{source.stem}-{level}.so"


def prebuilt(source: Path) -> Path | None:
    """Returns the best core of `source` that came with the wheel and runs on this processor; None in a checkout."""
    has = frozenset(cpu_model().split())
    for level, needs in LEVELS.get(platform.machine(), ()):
        if needs <= has and (library := in_wheel(source, level)).exists():
            return library
    return None


def cache_dir(source: Path) -> Path:
    """Returns the folder for compiled libraries: `_build/` beside the source, or else the user's cache if that is not
    writable.

    Raises NativeBuildError if neither is writable.
    """
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "das"
    for folder in (source.with_name("_build"), user):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue  # for example a read-only installation: try the next folder
        if os.access(folder, os.W_OK):
            return folder
    raise NativeBuildError(f"no writable folder for compiled C: tried {source.with_name('_build')} and {user}")


def compile_core(source: Path, library: Path, march: str) -> None:
    """Compile `source`, a C11 file with headers beside it and one folder up, into `library`.

    march: the processor, as gcc's -march names it. Raises NativeBuildError with a one-line message if gcc is missing or
    rejects the file.
    """
    gcc = shutil.which("gcc")
    if gcc is None:
        raise NativeBuildError(
            f"{source.name} must be compiled, but gcc was not found: install gcc and the C library headers "
            "(Debian, Ubuntu: apt-get install gcc libc6-dev), or a wheel of das-rollout, which has it compiled"
        )
    command = [gcc, *FLAGS, f"-march={march}", str(source), "-o", str(library), "-lm"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = next((line for line in result.stderr.splitlines() if "error: " in line), result.stderr.strip()[:200])
        raise NativeBuildError(f"gcc could not compile {source.name}: {reason}")


def build(source: Path) -> Path:
    """Compile `source` for this processor, and return the library's path.

    A library is reused while source, headers, flags and CPU stay the same. Concurrent builds are safe, because the
    finished library is renamed atomically. Raises NativeBuildError, as compile_core does.
    """
    files = [source, *sorted(source.parent.glob("*.h")), *sorted(source.parent.parent.glob("*.h"))]
    key = hashlib.sha256(b"\0".join([*(f.read_bytes() for f in files), " ".join(FLAGS).encode(), cpu_model().encode()]))
    folder = cache_dir(source)
    library = folder / f"{source.stem}-{key.hexdigest()[:16]}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch) / library.name
        compile_core(source, out, "native")
        os.replace(out, library)
    return library


def load_native(source: Path) -> ctypes.CDLL:
    """Load the core of `source`: the one that came with the wheel, or else one that is compiled if needed."""
    return ctypes.CDLL(str(prebuilt(source) or build(source)))
