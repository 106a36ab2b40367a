"""Merge the rollouts that several ranks made in one step, or divide a rollout that was made for all ranks."""

from collections.abc import Sequence
from dataclasses import replace

from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.report import merged as merged_reports
from das.engine.rollouts.rollout import Rollout
from das.trl.conversations import added_turns


def merged(rollouts: Sequence[Rollout]) -> Rollout:
    """Merge the ranks' rollouts into the rollout of the step. rollouts: one of each rank, in rank order.

    rollout_s, draft_s and the timeline of passes are those of the slowest rank, because the others wait for it. The
    calibration error is the largest of all ranks, and the alarms of all ranks are kept. Responses are listed in rank
    order, and each response's cost names its `rank`. A single rollout is returned as it is.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    ranks = {f"rank {rank}": rollout for rank, rollout in enumerate(rollouts)}
    slowest = max(ranks, key=lambda rank: ranks[rank].rollout_s)
    report = merged_reports({rank: rollout.report for rank, rollout in ranks.items()}, slowest)
    if report.by_turn is not None:
        report = replace(report, by_turn=added_turns([rollout.report.by_turn or () for rollout in rollouts]))
    return Rollout(
        step=ranks[slowest].step,
        problems=[problem for rollout in rollouts for problem in rollout.problems],
        responses=[response for rollout in rollouts for response in rollout.responses],
        finish_reasons=[reason for rollout in rollouts for reason in rollout.finish_reasons],
        requests=[replace(cost, rank=rank) for rank, rollout in enumerate(rollouts) for cost in rollout.requests],
        rollout_s=ranks[slowest].rollout_s,
        report=report,
    )


def divided(rollout: Rollout, shares: Sequence[int]) -> list[Rollout]:
    """Divide a rollout that was made for all ranks into one for each rank. `merged` undoes this.

    shares: the number of responses that each rank asked for, in rank order. Each rank gets its responses and their
    costs. Times, the timeline and other counts, which cannot be divided, stay with the first rank.
    """
    parts = []
    for rank, share in enumerate(shares):
        start = sum(shares[:rank])
        own = slice(start, start + share)
        report = rollout.report
        if rank:
            report = RolloutReport(draft_s=report.draft_s, calibration_error=report.calibration_error)
        costs = rollout.requests[own]
        parts.append(
            Rollout(
                step=rollout.step,
                problems=rollout.problems[own],
                responses=rollout.responses[own],
                finish_reasons=rollout.finish_reasons[own],
                requests=costs,
                rollout_s=rollout.rollout_s,
                report=report.of_requests(costs),
            )
        )
    return parts
