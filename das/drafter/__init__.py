"""Drafters propose tokens, each with its estimated probability of being accepted."""

from das.drafter.draft import Draft, Drafts, TreeDraft, TreeDrafts
from das.drafter.history import HistoryDrafter
from das.drafter.options import DEFAULT_UNIT, UNITS, DrafterOptions

__all__ = ["DEFAULT_UNIT", "UNITS", "Draft", "DrafterOptions", "Drafts", "HistoryDrafter", "TreeDraft", "TreeDrafts"]
