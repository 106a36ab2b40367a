"""Errors of the training side that end a run."""


class WeightSyncError(RuntimeError):
    """The engine does not compute with the trainer's weights."""


class TrainingDiverged(RuntimeError):
    """A loss or gradient is no number any more; neither is the policy."""
