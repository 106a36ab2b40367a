"""Replace functions of vLLM and TRL: for good on an object, or for a while in a module that others share."""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from das.engine.versions import UnsupportedVersion, installed

_replacing = threading.RLock()


def patch(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace owner.name by a function that calls `replacement(original, ...)`. An object's class is left alone."""
    original = required(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, patched)


@contextmanager
def replaced(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Inside the `with` block, owner.name calls `replacement(original, ...)`. Only one thread at a time may be inside,
    so that the original comes back."""
    with _replacing:
        original = required(owner, name)
        held = inspect.getattr_static(owner, name)

        def replacing(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(owner, name, staticmethod(replacing) if isinstance(held, staticmethod) else replacing)
        try:
            yield
        finally:
            setattr(owner, name, held)


def required(owner: Any, name: str) -> Any:
    """Returns owner.name. Raises UnsupportedVersion with a one-line message if vLLM or TRL has no such name."""
    if not hasattr(owner, name):
        kind = owner if isinstance(owner, ModuleType | type) else type(owner)
        package = (kind.__name__ if isinstance(kind, ModuleType) else kind.__module__).partition(".")[0]
        version = installed(package, f"{package}-cpu")
        raise UnsupportedVersion(
            f"{package} {version}: {kind.__name__} has no {name}, which das replaces: install {package} again, or a "
            "version that das supports"
        )
    return getattr(owner, name)
