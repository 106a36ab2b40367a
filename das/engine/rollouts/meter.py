"""The meter counts a rollout's costs, in the same way for every method, with or without drafts.

It counts the tokens of responses. A pass may verify drafts beyond the end of a response, and a request may run once
more before its engine hears of the end: such tokens and passes are no part of the counts.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from das.budget import DraftWork
from das.engine.rollouts.report import RequestCost, RolloutReport

TAIL = 4  # passes with at most so many requests are the tail of a rollout
COUNTED_TOGETHER = 256  # passes at most
LAST_PASSES = 16  # the end of a response is looked for in its last passes


def stop_tokens(params: Any) -> frozenset[int]:
    """Returns the tokens that end a response. params: vLLM's SamplingParams."""
    return frozenset((params.stop_token_ids or ()) if params.ignore_eos else params.all_stop_token_ids)


def end_of_response(params: Any, tokens: Sequence[int], first: int) -> int:
    """Returns how many of the emitted `tokens` belong to the response: up to a stop token or max_tokens. first: where
    to begin to look. params: vLLM's SamplingParams.

    The end that a stop string makes is known where the response is (`RequestCost.of_response`).
    """
    end = len(tokens) if params.max_tokens is None else min(len(tokens), params.max_tokens)
    stops = stop_tokens(params)
    return next((i + 1 for i in range(first, end) if tokens[i] in stops), end)


@dataclass
class RequestCounts:
    """Counts of one request so far. request: as the runner knows it, with sampling_params and output_token_ids; None if
    the runner does not know the tokens."""

    request: Any = None

    passes: int = 0  # target passes that emitted at least one token
    num_drafted: int = 0  # draft tokens verified
    rounds: int = 0  # passes that verified a draft token or more
    first_s: float = 0.0  # when its first token came, in seconds since the rollout began
    last_s: float = 0.0  # when its last token came
    emitted: list[int] = field(default_factory=list)  # tokens that each of these passes emitted
    steps: list[int] = field(default_factory=list)  # the numbers of these passes in the rollout

    def cost(self) -> RequestCost:
        """Returns the costs of the response."""
        emitted = self.emitted if self.rounds else None
        cost = RequestCost(self.passes, self.num_drafted, self.first_s, self.last_s, emitted=emitted)
        if self.request is None:
            return cost
        tokens = self.request.output_token_ids
        first = max(0, len(tokens) - sum(self.emitted[-LAST_PASSES:]))
        behind = len(tokens) - end_of_response(self.request.sampling_params, tokens, first)
        return cost.of_response(sum(self.emitted) - behind) if behind else cost


@dataclass
class _Passes:
    """Passes that are not counted yet. They are counted together, as in a pass the device may wait for the host."""

    names: list[list[str]] = field(default_factory=list)  # by pass, the ids of its requests
    num_drafted: list[Sequence[int]] = field(default_factory=list)  # by pass, of each request
    num_emitted: list[Sequence[int]] = field(default_factory=list)


@dataclass
class RolloutMeter:
    """Costs of one rollout so far, by request and by decode step. The rollout begins when the meter is made."""

    began: float = field(default_factory=time.perf_counter)
    step_time_s: list[float] = field(default_factory=list)  # when each target pass ended, since `began`
    step_live: list[int] = field(default_factory=list)  # requests in each pass
    step_tokens: list[int] = field(default_factory=list)  # rows of logits sampled in each pass: requests + drafted
    step_emitted: list[int] = field(default_factory=list)  # tokens that each pass emitted
    undrafted_rows: int = 0  # rows that vLLM's scheduler planned for drafts, and nobody drafted
    launched_ahead: int = 0  # passes that were launched before their drafts were known
    draft_s: float = 0.0  # seconds of drafting and of the drafter's bookkeeping; the seconds below are part of it
    draft_passes: int = 0  # passes of a draft model
    draft_rows: int = 0  # rows that these passes computed
    draft_pass_s: float = 0.0  # seconds that these passes took
    requantize_s: float = 0.0  # seconds in which a self-draft quantized the policy's weights
    _requests: dict[str, RequestCounts] = field(default_factory=dict)
    _known: dict[str, Any] = field(default_factory=dict)  # the runner's requests that a pass had
    _uncounted: _Passes = field(default_factory=_Passes)

    @property
    def num_requests(self) -> int:
        """Requests that a pass had so far."""
        return len(self._known)

    @property
    def requests(self) -> dict[str, RequestCounts]:
        """The counts of each request that has emitted a token."""
        self._count()
        return self._requests

    def record_pass(
        self,
        request_ids: list[str],
        num_drafted: Sequence[int],
        num_emitted: Sequence[int],
        ended: float | None = None,
        known: Mapping[str, Any] | None = None,
    ) -> None:
        """Count one target pass. num_drafted, num_emitted: each request's numbers of drafted and of emitted tokens;
        num_emitted is 0 for unfinished prompts. ended: when the pass ended, by time.perf_counter; None: now. known: the
        runner's requests, whose output_token_ids have these tokens; None: it does not know them."""
        now = (time.perf_counter() if ended is None else ended) - self.began
        for name in request_ids:
            if name not in self._known:
                self._known[name] = None if known is None else known.get(name)
        self._uncounted.names.append(request_ids)
        self._uncounted.num_drafted.append(num_drafted)
        self._uncounted.num_emitted.append(num_emitted)
        self.step_time_s.append(now)
        self.step_live.append(len(request_ids))
        self.step_tokens.append(len(request_ids) + sum(num_drafted))
        self.step_emitted.append(sum(num_emitted))
        if len(self._uncounted.names) >= COUNTED_TOGETHER:
            self._count()

    def _count(self) -> None:
        """Add the passes that are not counted yet to the requests' counts."""
        if not self._uncounted.names:
            return
        passes, self._uncounted = self._uncounted, _Passes()
        number, names = len(passes.names), list(dict.fromkeys(chain.from_iterable(passes.names)))
        place = dict(zip(names, range(len(names)), strict=True))
        request = np.fromiter(map(place.__getitem__, chain.from_iterable(passes.names)), np.int64)
        drafted, emitted = (
            np.fromiter(chain.from_iterable(counts), np.int64) for counts in (passes.num_drafted, passes.num_emitted)
        )
        steps = np.repeat(np.arange(len(self.step_live) - number, len(self.step_live)), list(map(len, passes.names)))
        order = np.argsort(request, kind="stable")
        order = order[emitted[order] > 0]
        ends = np.searchsorted(request[order], np.arange(len(names) + 1))
        drafted, emitted, steps = drafted[order], emitted[order], steps[order]
        for name, start, end in zip(names, ends.tolist(), ends[1:].tolist(), strict=False):
            if start == end:
                continue
            its_steps = steps[start:end].tolist()
            counts = self._requests.get(name)
            if counts is None:
                counts = self._requests[name] = RequestCounts(self._known[name], first_s=self.step_time_s[its_steps[0]])
            counts.passes += end - start
            counts.num_drafted += int(drafted[start:end].sum())
            counts.rounds += int(np.count_nonzero(drafted[start:end]))
            counts.emitted += emitted[start:end].tolist()
            counts.steps += its_steps
            counts.last_s = self.step_time_s[its_steps[-1]]

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
        costs, step_emitted = self.costs(), list(self.step_emitted)
        for name, cost in costs.items():
            counts = self.requests[name]
            kept = [1] * cost.passes if cost.emitted is None else list(cost.emitted)
            for place in range(max(0, len(kept) - 1), len(counts.steps)):  # only the last passes were cut
                step_emitted[counts.steps[place]] -= counts.emitted[place] - (kept[place] if place < len(kept) else 0)
        counted = {name: value for name, value in vars(self).items() if name != "began" and name[0] != "_"}
        return RolloutReport(
            **counted | {"step_emitted": step_emitted},
            draft_rounds=sum(counts.rounds for counts in self.requests.values()),
            decode_steps=len(self.step_time_s),
            tail_steps=sum(live <= TAIL for live in self.step_live),
        ).of_requests(list(costs.values()))
