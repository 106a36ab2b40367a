"""Errors that end a run."""


class EngineError(RuntimeError):
    """An engine cannot be built with these settings. The message says what to change."""


class WeightSyncError(RuntimeError):
    """The engine does not compute with the trainer's weights."""


class EngineDied(RuntimeError):
    """The process of the engine is gone."""
