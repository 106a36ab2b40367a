"""A worker extension for servers under test: what the engine's parts of das hold and have counted."""

from collections import Counter
from typing import Any

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


class Counts:
    """vLLM adds its methods to the worker (`--worker-extension-cls`)."""

    das_runner: Any

    def drafted(self) -> dict[str, int]:
        """Counts of all requests since the engine began."""
        now = counted(self.das_runner.flights.meter)
        return {name: COUNTED[name] + count for name, count in now.items()}

    def held(self) -> dict[str, int]:
        """How much the engine's parts of das hold."""
        proposer = self.das_runner.flights.drafter
        return {"history_tokens": proposer.draft_round.drafter.history_tokens, "live": len(proposer.live)}
