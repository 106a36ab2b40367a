"""Drafters propose tokens, each with its estimated probability of being accepted."""

from das.drafter.history import Draft, Drafts, HistoryDrafter

__all__ = ["Draft", "Drafts", "HistoryDrafter"]
