"""Drafters propose tokens, each with its estimated probability of being accepted."""

from das.drafter.history import Draft, HistoryDrafter

__all__ = ["Draft", "HistoryDrafter"]
