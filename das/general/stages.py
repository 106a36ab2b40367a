"""What a process does while it starts: das says it here, for whoever wants to show it."""

from collections.abc import Callable

_listener: Callable[[str], object] | None = None


def listen(listener: Callable[[str], object] | None) -> None:
    """Call `listener` with each stage that begins in this process from now on; None: nobody listens."""
    global _listener
    _listener = listener


def now(what: str) -> None:
    """Say what this process does now, such as "loads the policy"."""
    if _listener is not None:
        _listener(what)
