"""Drafters propose tokens, each with its estimated probability of being accepted."""

from collections.abc import Mapping
from typing import Any

from das.drafter.drafter import Draft, Drafter, Drafts
from das.drafter.history import HistoryDrafter
from das.drafter.options import DEFAULT_UNIT, check_unit
from das.general.named_class import named_class

__all__ = ["DEFAULT_UNIT", "Draft", "Drafter", "Drafts", "HistoryDrafter", "check_unit"]  # imported for others

DRAFTERS: dict[str, type[Drafter]] = {"history": HistoryDrafter}  # settings may name other classes, as "module:Class"


def make_drafter(settings: Mapping[str, Any]) -> Drafter:
    """Build the drafter that settings["name"] names (config group `drafter`; default: history). The other settings are
    its options. Raises the errors of `check_drafter`, and ValueError for a damaged saved history.
    """
    drafter, options = _named(settings)
    return drafter(**options)


def check_drafter(settings: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError with a one-line message if `make_drafter` cannot build this drafter. Reads no
    file."""
    drafter, options = _named(settings)
    drafter.check(options)


def _named(settings: Mapping[str, Any]) -> tuple[type[Drafter], dict[str, Any]]:
    return named_class("drafter", settings, {"name": "history"}, DRAFTERS, Drafter)  # type: ignore[type-abstract]
