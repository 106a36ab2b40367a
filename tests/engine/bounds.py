"""The bounds of what an engine holds for callers who announce nothing, lowered so that a minute reaches them. It would
take days to reach those of a real engine."""

from typing import Any

TOKENS_PER_TICK, MAX_PASSES, MAX_PROBLEMS = 2**11, 64, 64


def lower_the_bounds() -> None:
    """For engines that are built afterwards, in this process."""
    import das.budget.lengths
    import das.drafter.drafter
    import das.engine.worker

    das.drafter.drafter.TOKENS_PER_TICK = TOKENS_PER_TICK
    das.engine.worker.MAX_PASSES = MAX_PASSES
    das.budget.lengths.ByProblem.__init__.__defaults__ = (MAX_PROBLEMS,)


def sizes(worker: Any) -> dict[str, int]:
    """How much the engine's parts of das hold."""
    runner = worker.das_runner
    proposer = runner.flights.drafter
    drafter = proposer.draft_round.drafter
    return {
        "history_tokens": drafter.history_tokens,
        "history_tick": drafter.history_tick,
        "lengths": len(proposer.lengths._problems),
        "passes": len(runner.flights.meter.step_time_s) + len(proposer.record.measured_s),
        "live": len(proposer.live),
    }
