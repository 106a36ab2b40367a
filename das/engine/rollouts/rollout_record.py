"""The proposer's notes about the running rollout, for its report, the judge and the history's clock."""

from dataclasses import dataclass, field

from das.budget import LiveRequest
from das.drafter.distributions import Distributions

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
        requests finished in it, and their response tokens.
        """
        self._unannounced_tokens += tokens + TOKENS_PER_REQUEST * requests
        passed, self._unannounced_tokens = divmod(self._unannounced_tokens, TOKENS_PER_TICK)
        return passed


@dataclass
class RolloutRecord:
    """Expected and measured times and lengths, and sums over the requests that finished."""

    announced: bool = False  # whether somebody will ask for the requests' costs
    passes: int = 0  # of requests that may draft
    num_drafted: int = 0
    num_accepted: int = 0
    tokens: int = 0
    requests: int = 0
    declined: bool = False  # whether there was a pass for which the budget let nobody draft
    predicted_s: list[float] = field(default_factory=list)  # seconds that the budget expected of each decode pass
    measured_s: list[float] = field(default_factory=list)  # seconds that the pass took
    predicted_length: dict[str, float] = field(default_factory=dict)  # by request, in tokens, predicted when it began
    seeds: dict[str, int | None] = field(default_factory=dict)  # by request, if the drafter remembers distributions
    remembered: dict[str, Distributions] = field(default_factory=dict)  # of requests that have ended

    def finish(self, request: LiveRequest) -> None:
        """Count a request that finished."""
        self.passes += request.passes if request.limit > 0 else 0
        self.num_drafted += request.num_drafted
        self.num_accepted += request.num_accepted
        self.tokens += request.generated
        self.requests += 1

    def forget_turn(self) -> None:
        """Forget what belongs to the requests and passes so far, because the next turn has a report of its own."""
        self.predicted_length, self.predicted_s, self.measured_s = {}, [], []
        self.seeds, self.remembered = {}, {}
