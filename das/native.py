"""Compile the project's C cores with plain gcc on first use, and load them by ctypes (calls release the GIL)."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# -ffp-contract=off: a fused multiply-add rounds differently from the torch and Python twins of the same formula.
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
    """A C core could not be built; the message says what to install."""


def cpu_model() -> str:
    """What -march=native depends on: model name and feature flags of the first core; empty off Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return ""
    lines = cpuinfo.read_text().split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part")))


def cache_dir(source: Path) -> Path:
    """The folder for compiled libraries: `_build/` beside the source, or the user's cache when that is not writable."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "das"
    for folder in (source.with_name("_build"), user):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue  # a read-only installation: the next one
        if os.access(folder, os.W_OK):
            return folder
    raise NativeBuildError(f"no writable folder for compiled C: tried {source.with_name('_build')} and {user}")


def build(source: Path) -> Path:
    """Compile `source` (a C11 file and the headers beside it) unless they, these flags and this CPU were before.

    Returns the library. Raises NativeBuildError, in one line, when gcc is missing or refuses the file. Safe against
    concurrent builds: the library appears under its final name in one rename.
    """
    files = [source, *sorted(source.parent.glob("*.h"))]
    key = hashlib.sha256(b"\0".join([*(f.read_bytes() for f in files), " ".join(FLAGS).encode(), cpu_model().encode()]))
    folder = cache_dir(source)
    library = folder / f"{source.stem}-{key.hexdigest()[:16]}.so"
    if library.exists():
        return library
    gcc = shutil.which("gcc")
    if gcc is None:
        raise NativeBuildError(
            f"{source.name} is compiled on first use and there is no gcc: install gcc and the C library headers "
            "(Debian, Ubuntu: apt-get install gcc libc6-dev)"
        )
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch) / library.name
        command = [gcc, *FLAGS, str(source), "-o", str(out), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = next((line for line in done.stderr.splitlines() if "error: " in line), done.stderr.strip()[:200])
            raise NativeBuildError(f"gcc could not compile {source.name}: {why}")
        os.replace(out, library)
    return library


def load_native(source: Path) -> ctypes.CDLL:
    """Build `source` if needed, and load it."""
    return ctypes.CDLL(str(build(source)))
