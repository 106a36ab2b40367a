"""Merge the rollouts that several ranks made in one step."""

from collections.abc import Sequence
from dataclasses import replace

from das.engine.rollouts.report import merged as merged_reports
from das.engine.rollouts.rollout import Rollout


def merged(rollouts: Sequence[Rollout]) -> Rollout:
    """Merge the ranks' rollouts into the rollout of the step. rollouts: one of each rank, in rank order.

    rollout_s, draft_s and the timeline of passes are those of the slowest rank, because the others wait for it. The
    calibration error is the largest of all ranks, and the alarms of all ranks are kept. Responses are listed in rank
    order, and each names its `rank`. A single rollout is returned as it is.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    ranks = {f"rank {rank}": rollout for rank, rollout in enumerate(rollouts)}
    slowest = max(ranks, key=lambda rank: ranks[rank].rollout_s)
    report = merged_reports({rank: rollout.report for rank, rollout in ranks.items()}, slowest)
    return Rollout(
        step=ranks[slowest].step,
        finished=[replace(each, rank=rank) for rank, rollout in enumerate(rollouts) for each in rollout.finished],
        rollout_s=ranks[slowest].rollout_s,
        report=report,
    )
