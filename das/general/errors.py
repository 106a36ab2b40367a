"""Errors that end a run, and the words of other libraries' errors."""

import re

# Sentences that tell the user to open a pickle, or to run code that comes with a model.
_ADVICE = re.compile(r"weights_only|safe_globals|allow_pickle=True|trust_remote_code|you trust|trusted source", re.I)


def reason_of(error: BaseException) -> str:
    """Returns what another library's error says, in one line, without advice to open a pickle or to run a model's code:
    das does neither."""
    sentences = re.split(r"(?<=[.:;!?])\s+", str(error))
    return " ".join(" ".join(each for each in sentences if not _ADVICE.search(each)).split())


class EngineError(RuntimeError):
    """An engine cannot be built with these settings. The message says what to change."""


class NotInstalled(RuntimeError):
    """An engine is to use das, but lacks something that das needs. The message says what."""


class WeightSyncError(RuntimeError):
    """The engine does not compute with the trainer's weights."""


class ClusterError(RuntimeError):
    """The engines cannot continue. A one-line message says why, and what to change."""
