"""Rollouts on many engines: the package decides which engine gets which request, and sends engines past rollouts."""
