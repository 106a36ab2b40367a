"""A class of the user's own, named in settings: a drafter or a budget."""

from importlib import import_module
from inspect import isabstract
from typing import TypeVar

T = TypeVar("T")


def load_class(name: str, base: type[T]) -> type[T]:
    """The class that "module:Class" names, a subclass of `base`. Python must find the module.

    Raises ValueError, in one line, where there is no such class, or it is not a complete `base`.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name}: there is no module {error.name!r}; put its folder on PYTHONPATH") from error
    if not isinstance(found, type) or not issubclass(found, base):
        raise ValueError(f"{name}: {module} has no subclass {attribute!r} of das's {base.__name__}")
    if isabstract(found):
        raise ValueError(f"{name}: it lacks {', '.join(sorted(found.__abstractmethods__))}")  # type: ignore[attr-defined]
    return found
