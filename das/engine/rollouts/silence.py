"""Warn in the log if nothing is drafted although requests may have drafts: then tokens are right, but come slowly. Find
out if the budget holds back because passes with drafts take long."""

import logging
from collections.abc import Sequence

from das.budget import LiveRequest

SILENT_PASSES = 2**10  # passes in a row without a draft before the first warning; each later one comes at twice as many
HELD_BACK = 10  # the budget holds back if it lets less than one token pass for so many passes of requests
ENOUGH = 100  # passes of requests; a rollout with fewer is not judged
logger = logging.getLogger("das")


class SilenceWatch:
    """Counts passes in a row in which requests might have had drafts but none had, and warns."""

    def __init__(self) -> None:
        self._silent_passes = 0
        self._warn_at = SILENT_PASSES
        self._told_of_budget = False

    def end_rollout(self, passes: int, drafted: int, declined: bool) -> list[str]:
        """Note a rollout that ended on a budget that learns times. Returns, once, a line if the budget holds back.

        passes, drafted (tokens): sums over its requests. declined: whether there was a pass for which the budget cut
        everything that was drafted.
        """
        if self._told_of_budget or not declined or passes < ENOUGH or drafted * HELD_BACK >= passes:
            return []
        self._told_of_budget = True
        return [
            f"the budget holds back ({drafted} drafted tokens in {passes} passes of requests), because now a pass with "
            "drafts takes longer here than it saves. Other work on this machine may be why, and another run may draft "
            "more. No token changes; budget=fixed drafts whatever the clock says"
        ]

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
                "das_problem ids ever come back? Look at drafter.window, drafter.min_prob and the budget too",
                self._silent_passes,
            )
