"""Rollouts on many engines: which engine gets which request, and how each engine learns the others' texts."""
