"""Find the class that settings name: one of das's, or one that the user wrote, a drafter or a budget."""

from collections.abc import Mapping
from importlib import import_module
from inspect import isabstract
from typing import Any, TypeVar

T = TypeVar("T")


def named_class(
    group: str, settings: Mapping[str, Any], default: Mapping[str, Any], known: Mapping[str, type[T]], base: type[T]
) -> tuple[type[T], dict[str, Any]]:
    """Returns the class that settings["name"] names, and the other settings, which are its options.

    group: "drafter" or "budget", for messages. default: takes the place of settings that name nothing, but for the
    options that they have. known: das's classes by name; another name must be "module:Class", of a subclass of `base`.
    Raises TypeError or ValueError with a one-line message if there is no such class.
    """
    if not isinstance(settings, Mapping):
        raise TypeError(f"{group} {settings!r}: give a dictionary of its name and options")
    options = dict(settings) if "name" in settings else {**default, **settings}
    name = options.pop("name")
    if isinstance(name, str) and (name in known or ":" in name):
        return known[name] if name in known else load_class(group, name, base), options
    raise ValueError(f"unknown {group} {name!r}: choose {', '.join(known)}, or name a class as module:Class")


def load_class(group: str, name: str, base: type[T]) -> type[T]:
    """Import and return a class. name: "module:Class"; Python must find the module.

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
