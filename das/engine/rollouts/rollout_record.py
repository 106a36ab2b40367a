"""The proposer's notes about the running rollout, for its report, the alarm and the history's clock."""

from dataclasses import dataclass, field

from das.budget import LiveRequest


@dataclass
class RolloutRecord:
    """Expected and measured times and lengths, and sums over the requests that finished and joined the history."""

    history_before: int  # tokens in the history when the rollout began, and those that other engines sent since
    passes: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    tokens: int = 0
    requests: int = 0
    declined: bool = False  # whether there was a pass for which the budget cut everything that was drafted
    predicted_s: list[float] = field(default_factory=list)  # seconds that the budget expected of each decode pass
    measured_s: list[float] = field(default_factory=list)  # seconds that the pass took
    predicted_length: dict[str, float] = field(default_factory=dict)  # by request, in tokens, predicted when it began

    def finish(self, request: LiveRequest) -> None:
        """Count a request that finished and joined the history."""
        self.passes += request.passes
        self.num_drafted += request.num_drafted
        self.num_accepted += request.num_accepted
        self.tokens += request.generated
        self.requests += 1

    def forget_predictions(self) -> None:
        """Forget predictions and times, because the next turn of the rollout has a report of its own."""
        self.predicted_length, self.predicted_s, self.measured_s = {}, [], []
