"""Rewards: functions from response texts and references to numbers."""
