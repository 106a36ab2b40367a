"""Errors of the training side that end a run."""


class WeightSyncError(RuntimeError):
    """The engine does not compute with the trainer's weights."""
