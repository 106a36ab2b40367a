"""The proposer's notes about the running rollout, for its report, the judge and the history's clock."""

from dataclasses import dataclass, field
from typing import Any

from das.budget import DraftWork

# Where nobody announces rollouts, a history tick is this many response tokens, so that memory is bounded: the default
# window of 16 ticks then holds 8 million tokens, whose index takes about 90 bytes each.
TOKENS_PER_TICK = 2**19
# A request counts as so many further tokens: its prompt and bookkeeping take about 5 KB, however short its response.
TOKENS_PER_REQUEST = 64


class HistoryClock:
    """Counts the ticks of the drafter's history. told: the last tick that a caller gave, a step or an epoch."""

    def __init__(self, told: int):
        self.told = told
        self._unannounced_tokens = 0  # tokens of unannounced rollouts that do not make a tick yet

    def announced(self, tick: int) -> int:
        """Returns by how many ticks the clock moves at the end of an announced rollout. tick: the caller's new tick."""
        # A smaller tick comes from another trainer, whose clock began at 0. The history's clock never goes back.
        passed = tick - (self.told if tick >= self.told else 0)
        self.told = tick
        return passed

    def unannounced(self, requests: int, tokens: int) -> int:
        """Returns by how many ticks the clock moves at the end of an unannounced rollout. requests, tokens: how many
        requests ran in it, and the tokens that they emitted.
        """
        self._unannounced_tokens += tokens + TOKENS_PER_REQUEST * requests
        passed, self._unannounced_tokens = divmod(self._unannounced_tokens, TOKENS_PER_TICK)
        return passed


@dataclass
class RolloutRecord:
    """Expected and measured times of passes, and what drafting did."""

    announced: bool = False  # whether somebody will ask for the requests' costs
    declined: bool = False  # whether there was a pass for which the budget let nobody draft
    predicted_s: list[float] = field(default_factory=list)  # seconds that the budget expected of each decode pass
    measured_s: list[float] = field(default_factory=list)  # seconds that the pass took
    works: list[DraftWork] = field(default_factory=list)  # of a draft model, by round

    def of_draft_model(self) -> dict[str, Any]:
        """Returns the work of a draft model, as fields of a RolloutReport."""
        passes = [each for work in self.works for each in work.passes]
        return {
            "draft_passes": len(passes),
            "draft_rows": sum(rows for rows, _ in passes),
            "draft_pass_s": sum(seconds for _, seconds in passes),
            "requantize_s": sum(work.requantize_s for work in self.works),
        }

    def forget_turn(self) -> None:
        """Forget what belongs to the passes so far, because the next turn has a report of its own."""
        self.predicted_s, self.measured_s, self.works = [], [], []
