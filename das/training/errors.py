"""Errors of training that end a run."""


class WeightSyncError(RuntimeError):
    """The engine does not compute with the trainer's weights."""


class EngineDied(RuntimeError):
    """The process of the engine is gone."""


class TrainingDiverged(RuntimeError):
    """A loss or a gradient norm is not finite, so the policy is lost."""
