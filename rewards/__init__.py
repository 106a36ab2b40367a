"""Rewards: functions that map response texts and references to numbers."""
