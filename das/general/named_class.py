"""Load a class that the user wrote and named in the settings: a drafter or a budget."""

from importlib import import_module
from inspect import isabstract
from typing import TypeVar

T = TypeVar("T")


def load_class(group: str, name: str, base: type[T]) -> type[T]:
    """Import and return a class. group: the settings that name it, for messages. name: "module:Class"; Python must find
    the module, and the class must be a subclass of `base`.

    Raises ValueError with a one-line message if there is no such class, or if it lacks abstract methods of `base`.
    """
    named = f"{group}.name={name}"
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ValueError(f"{named}: must be module:Class")
    try:
        found = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ValueError(f"{named}: there is no module {error.name!r}; put its folder on PYTHONPATH") from error
    if not isinstance(found, type) or not issubclass(found, base):
        raise ValueError(f"{named}: {module} has no subclass {attribute!r} of das's {base.__name__}")
    if isabstract(found):
        raise ValueError(f"{named}: it lacks {', '.join(sorted(found.__abstractmethods__))}")  # type: ignore[attr-defined]
    return found
