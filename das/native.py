"""Compile the project's C cores with gcc on first use, and load them through ctypes, whose calls release the GIL."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# -ffp-contract=off: a fused multiply-add would round differently from the torch and Python versions of a formula.
FLAGS = (
    "-std=c11",
    "-O3",
    "-march=native",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
)


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


def build(source: Path) -> Path:
    """Compile `source`, a C11 file with headers beside it and one folder up, and return the library's path.

    A library is reused while source, headers, flags and CPU stay the same. Concurrent builds are safe, because the
    finished library is renamed atomically. Raises NativeBuildError with a one-line message if gcc is missing or rejects
    the file.
    """
    files = [source, *sorted(source.parent.glob("*.h")), *sorted(source.parent.parent.glob("*.h"))]
    key = hashlib.sha256(b"\0".join([*(f.read_bytes() for f in files), " ".join(FLAGS).encode(), cpu_model().encode()]))
    folder = cache_dir(source)
    library = folder / f"{source.stem}-{key.hexdigest()[:16]}.so"
    if library.exists():
        return library
    gcc = shutil.which("gcc")
    if gcc is None:
        raise NativeBuildError(
            f"{source.name} is compiled on first use, but gcc was not found: install gcc and the C library headers "
            "(Debian, Ubuntu: apt-get install gcc libc6-dev)"
        )
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch) / library.name
        command = [gcc, *FLAGS, str(source), "-o", str(out), "-lm"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = next(
                (line for line in result.stderr.splitlines() if "error: " in line), result.stderr.strip()[:200]
            )
            raise NativeBuildError(f"gcc could not compile {source.name}: {reason}")
        os.replace(out, library)
    return library


def load_native(source: Path) -> ctypes.CDLL:
    """Compile the C file `source` if needed, and return the loaded library."""
    return ctypes.CDLL(str(build(source)))
