"""What one rollout cost: counted inside the model runner, the same way for every arm, speculative or not."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class RequestCost:
    """Counts of one request."""

    passes: int = 0  # target passes that emitted at least one token
    drafted: int = 0  # draft tokens verified
    first_s: float = 0.0  # seconds since the rollout began, first token
    last_s: float = 0.0  # same, last token


@dataclass
class RolloutMeter:
    """Costs since `begin`, per request and per decode step."""

    began: float = field(default_factory=time.perf_counter)
    requests: dict[str, RequestCost] = field(default_factory=dict)
    step_time_s: list[float] = field(default_factory=list)  # when each target pass ended, since `began`
    step_live: list[int] = field(default_factory=list)  # requests in the pass
    step_tokens: list[int] = field(default_factory=list)  # rows of logits sampled in the pass: requests + drafted
    step_emitted: list[int] = field(default_factory=list)
    draft_s: float = 0.0  # drafting and the drafter's bookkeeping

    def record_pass(self, request_ids: list[str], drafted: np.ndarray, emitted: np.ndarray) -> None:
        """Count one target pass. drafted, emitted: int [requests]; emitted is 0 for unfinished prompts."""
        now = time.perf_counter() - self.began
        for request, asked, got in zip(request_ids, drafted.tolist(), emitted.tolist(), strict=True):
            if got:
                cost = self.requests.get(request)
                if cost is None:
                    cost = self.requests[request] = RequestCost(first_s=now)
                cost.passes += 1
                cost.drafted += asked
                cost.last_s = now
        self.step_time_s.append(now)
        self.step_live.append(len(request_ids))
        self.step_tokens.append(len(request_ids) + int(drafted.sum()))
        self.step_emitted.append(int(emitted.sum()))

    def report(self) -> dict[str, Any]:
        """Plain numbers and lists, fit for RPC and JSON."""
        return {
            "requests": {name: vars(cost) for name, cost in self.requests.items()},
            "passes": sum(cost.passes for cost in self.requests.values()),
            "drafted": sum(cost.drafted for cost in self.requests.values()),
            "draft_s": self.draft_s,
            "decode_steps": len(self.step_time_s),
            "live_sum": sum(self.step_live),
            "drafted_steps": sum(tokens > live for tokens, live in zip(self.step_tokens, self.step_live, strict=True)),
            "step_time_s": self.step_time_s,
            "step_live": self.step_live,
            "step_tokens": self.step_tokens,
            "step_emitted": self.step_emitted,
        }
