"""The meter counts a rollout's costs, in the same way for every method, with or without drafts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from das.budget.draft_price import DraftWork
from das.engine.rollouts.report import RequestCost, RolloutReport

TAIL = 4  # passes with at most so many requests are the tail of a rollout


@dataclass
class RequestCounts:
    """Counts of one request so far."""

    passes: int = 0  # target passes that emitted at least one token
    num_drafted: int = 0  # draft tokens verified
    rounds: int = 0  # passes that verified a draft token or more
    first_s: float = 0.0  # when its first token came, in seconds since the rollout began
    last_s: float = 0.0  # when its last token came
    emitted: list[int] = field(default_factory=list)  # tokens that each of these passes emitted

    def cost(self) -> RequestCost:
        """Returns the counts as a RequestCost."""
        emitted = self.emitted if self.rounds else None
        return RequestCost(self.passes, self.num_drafted, self.first_s, self.last_s, emitted=emitted)


@dataclass
class RolloutMeter:
    """Costs of one rollout so far, by request and by decode step. The rollout begins when the meter is made."""

    began: float = field(default_factory=time.perf_counter)
    requests: dict[str, RequestCounts] = field(default_factory=dict)
    step_time_s: list[float] = field(default_factory=list)  # when each target pass ended, since `began`
    step_live: list[int] = field(default_factory=list)  # requests in each pass
    step_tokens: list[int] = field(default_factory=list)  # rows of logits sampled in each pass: requests + drafted
    step_emitted: list[int] = field(default_factory=list)  # tokens that each pass emitted
    branches: int = 0  # branches verified: runs of drafted tokens beside the trunk of their draft
    copied_blocks: int = 0  # blocks of the KV cache that were copied for them, before and after their passes
    draft_s: float = 0.0  # seconds of drafting and of the drafter's bookkeeping; the seconds below are part of it
    draft_passes: int = 0  # passes of a draft model
    draft_rows: int = 0  # rows that these passes computed
    draft_pass_s: float = 0.0  # seconds that these passes took
    requantize_s: float = 0.0  # seconds in which a self-draft quantized the policy's weights

    def record_pass(
        self,
        request_ids: list[str],
        num_drafted: Sequence[int],
        num_emitted: Sequence[int],
        ended: float | None = None,
    ) -> None:
        """Count one target pass. num_drafted, num_emitted: each request's numbers of drafted and of emitted tokens;
        num_emitted is 0 for unfinished prompts. ended: when the pass ended, by time.perf_counter; None: now."""
        now = (time.perf_counter() if ended is None else ended) - self.began
        for request, drafted, emitted in zip(request_ids, num_drafted, num_emitted, strict=True):
            if emitted:
                counts = self.requests.get(request)
                if counts is None:
                    counts = self.requests[request] = RequestCounts(first_s=now)
                counts.passes += 1
                counts.num_drafted += drafted
                counts.rounds += drafted > 0
                counts.emitted.append(emitted)
                counts.last_s = now
        self.step_time_s.append(now)
        self.step_live.append(len(request_ids))
        self.step_tokens.append(len(request_ids) + sum(num_drafted))
        self.step_emitted.append(sum(num_emitted))

    def record_draft_work(self, work: DraftWork) -> None:
        """Count the passes of a draft model, and the time of its quantizing."""
        self.draft_passes += len(work.passes)
        self.draft_rows += sum(rows for rows, _ in work.passes)
        self.draft_pass_s += sum(seconds for _, seconds in work.passes)
        self.requantize_s += work.requantize_s

    def costs(self) -> dict[str, RequestCost]:
        """Returns the costs of each request, by the request's name."""
        return {name: counts.cost() for name, counts in self.requests.items()}

    def report(self) -> RolloutReport:
        """Make the report: the counts of all requests and passes, and their sums."""
        requests = self.requests.values()
        counts = {name: value for name, value in vars(self).items() if name not in ("began", "requests")}
        return RolloutReport(
            **counts,
            passes=sum(counts.passes for counts in requests),
            drafted=sum(counts.num_drafted for counts in requests),
            draft_rounds=sum(counts.rounds for counts in requests),
            decode_steps=len(self.step_time_s),
            tail_steps=sum(live <= TAIL for live in self.step_live),
            live_sum=sum(self.step_live),
            drafted_steps=sum(tokens > live for tokens, live in zip(self.step_tokens, self.step_live, strict=True)),
        )
