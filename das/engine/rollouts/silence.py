"""Warn in the log if nothing is drafted although requests may have drafts: then tokens are right, but come slowly."""

import logging
from collections.abc import Sequence

from das.budget import LiveRequest

SILENT_PASSES = 2**10  # passes in a row without a draft before the first warning; each later one comes at twice as many
logger = logging.getLogger("vllm.das")  # below vLLM's own logger, so that a server shows it


class SilenceWatch:
    """Counts passes in a row in which requests might have had drafts but none had, and warns."""

    def __init__(self) -> None:
        self._silent_passes = 0
        self._warn_at = SILENT_PASSES

    def observe(self, requests: Sequence[LiveRequest], drafted: bool) -> None:
        """Note a pass. requests: those that emitted in the pass. drafted: whether one got a draft for the next pass."""
        if drafted:
            self._silent_passes, self._warn_at = 0, SILENT_PASSES
        elif any(request.limit > 0 for request in requests):
            self._silent_passes += 1
        if self._silent_passes == self._warn_at:
            self._warn_at *= 2
            logger.warning(
                "speculation: nothing was drafted in the last %d passes, though requests may draft: do prompts or "
                "das_problem ids ever come back? Look at drafter.scope, drafter.min_prob and the budget too",
                self._silent_passes,
            )
