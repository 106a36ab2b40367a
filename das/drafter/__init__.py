"""Drafters propose tokens, each with its estimated probability of being accepted."""

from collections.abc import Mapping
from typing import Any

from das.drafter.drafter import Draft, Drafter, Drafts
from das.drafter.history import HistoryDrafter
from das.drafter.options import DEFAULT_UNIT, DrafterOptions, check_unit
from das.general.named_class import load_class

__all__ = [
    "DEFAULT_UNIT",
    "DRAFTERS",
    "Draft",
    "Drafter",
    "DrafterOptions",
    "Drafts",
    "HistoryDrafter",
    "check_drafter",
    "check_unit",
    "make_drafter",
]

DRAFTERS: dict[str, type[Drafter]] = {"history": HistoryDrafter}  # settings may name other classes, as "module:Class"


def make_drafter(settings: Mapping[str, Any]) -> Drafter:
    """Build the drafter that settings["name"] names (config group `drafter`; default: history). The other settings are
    its options. Raises the errors of `check_drafter`, and ValueError for a damaged saved history.
    """
    drafter, options = _drafter(settings)
    return drafter(**options)


def check_drafter(settings: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError with a one-line message if `make_drafter` cannot build this drafter. Reads no
    file."""
    drafter, options = _drafter(settings)
    drafter.check(options)


def _drafter(settings: Mapping[str, Any]) -> tuple[type[Drafter], dict[str, Any]]:
    if not isinstance(settings, Mapping):
        raise TypeError(f"drafter {settings!r}: give a dictionary of its name and options")
    options = dict(settings)
    name = options.pop("name", "history")
    if name in DRAFTERS:
        return DRAFTERS[name], options
    if not isinstance(name, str) or ":" not in name:
        raise ValueError(f"unknown drafter {name!r}: choose {', '.join(DRAFTERS)}, or name a class as module:Class")
    return load_class("drafter", name, Drafter), options  # type: ignore[type-abstract]
