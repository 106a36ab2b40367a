"""A worker extension for servers under test: what the engine's parts of das hold and have counted."""

import os
from collections import Counter
from typing import Any

from servers import MAX_PASSES, MAX_PROBLEMS, TOKENS_PER_TICK

import das.budget.lengths
import das.drafter.drafter
import das.engine.worker
from das.engine.running import RunningRollout

COUNTED: Counter[str] = Counter()  # by meters that were thrown away
END_UNANNOUNCED = RunningRollout.end_unannounced


def counted(meter: Any) -> dict[str, int]:
    """Counts as vLLM counts for /metrics: accepted tokens before a response is cut at its end."""
    report = meter.report(meter.finished())
    return {
        "drafts": report.draft_rounds,
        "drafted": report.drafted,
        "accepted": sum(sum(request.counts.emitted) - request.counts.passes for request in meter.requests),
    }


def count_and_end(running: RunningRollout) -> None:
    COUNTED.update(counted(running._flights.meter))
    END_UNANNOUNCED(running)


RunningRollout.end_unannounced = count_and_end  # type: ignore[method-assign, assignment]
if os.environ.get("SERVER_LOW_BOUNDS"):  # before the engine is built
    das.drafter.drafter.TOKENS_PER_TICK = TOKENS_PER_TICK
    das.engine.worker.MAX_PASSES = MAX_PASSES
    das.budget.lengths.ByProblem.__init__.__defaults__ = (MAX_PROBLEMS,)


class Counts:
    """vLLM adds its methods to the worker (`--worker-extension-cls`)."""

    das_runner: Any

    def drafted(self) -> dict[str, int]:
        """Counts of all requests since the engine began."""
        now = counted(self.das_runner.flights.meter)
        return {name: COUNTED[name] + count for name, count in now.items()}

    def held(self) -> dict[str, int]:
        """How much the engine's parts of das hold."""
        proposer, meter = self.das_runner.flights.drafter, self.das_runner.flights.meter
        drafter = proposer.draft_round.drafter
        return {
            "history_tokens": drafter.history_tokens,
            "history_tick": drafter.history_tick,
            "lengths": len(proposer.lengths._problems),
            "passes": len(meter.step_time_s) + len(proposer.record.measured_s),
            "live": len(proposer.live),
        }
