"""The meter counts a rollout's costs, in the same way for every method, with or without drafts.

It counts the tokens of responses. A pass may verify drafts beyond the end of a response, and a request may run once
more before its engine hears of the end: such tokens and passes are no part of the counts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from das.engine.requests import Counts, Request
from das.engine.rollouts.report import Finished, Plain, RolloutReport

TAIL = 4  # passes with at most so many requests are the tail of a rollout
COUNTED_TOGETHER = 256  # passes at most
LAST_PASSES = 16  # the end of a response is looked for in its last passes


def end_of_response(request: Request, first: int) -> int:
    """Returns how many of the emitted tokens belong to the response: up to a stop token or max_tokens. first: where to
    begin to look.

    The end that a stop string makes is known where the response is (`Finished.answered`).
    """
    tokens, limit = request.output_token_ids, request.params.max_tokens
    end = len(tokens) if limit is None else min(len(tokens), limit)
    return next((i + 1 for i in range(first, end) if tokens[i] in request.stop_tokens), end)


@dataclass(eq=False)
class RolloutMeter:
    """Costs of one rollout so far, by request and by decode step. The rollout begins when the meter is made."""

    began: float = field(default_factory=time.perf_counter)
    step_time_s: list[float] = field(default_factory=list)  # when each target pass ended, since `began`
    step_live: list[int] = field(default_factory=list)  # requests in each pass
    step_tokens: list[int] = field(default_factory=list)  # rows of logits sampled in each pass: requests + drafted
    step_emitted: list[int] = field(default_factory=list)  # tokens that each pass emitted
    undrafted_rows: int = 0  # rows that vLLM's scheduler planned for drafts, and nobody drafted
    launched_ahead: int = 0  # passes that were launched before their drafts were known
    draft_s: float = 0.0  # seconds of drafting and of the drafter's bookkeeping
    _requests: list[Request] = field(default_factory=list)  # that a pass had
    # Passes that are not counted yet: requests, and the numbers of drafted and of emitted tokens of each. They are
    # counted together, as in a pass the device may wait for the host.
    _uncounted: list[tuple[Sequence[Request], Sequence[int], Sequence[int]]] = field(default_factory=list)

    @property
    def num_requests(self) -> int:
        """Requests that a pass had so far."""
        return len(self._requests)

    @property
    def requests(self) -> list[Request]:
        """The requests that have emitted a token, with their counts."""
        self._count()
        return [request for request in self._requests if request.counts.passes]

    def record_pass(
        self,
        requests: Sequence[Request],
        num_drafted: Sequence[int],
        num_emitted: Sequence[int],
        ended: float | None = None,
    ) -> None:
        """Count one target pass. num_drafted, num_emitted: each request's numbers of drafted and of emitted tokens;
        num_emitted is 0 for unfinished prompts. ended: when the pass ended, by time.perf_counter; None: now."""
        now = (time.perf_counter() if ended is None else ended) - self.began
        for request in requests:
            if request.meter is not self:
                request.meter, request.counts = self, Counts()
                self._requests.append(request)
        self._uncounted.append((requests, num_drafted, num_emitted))
        self.step_time_s.append(now)
        self.step_live.append(len(requests))
        self.step_tokens.append(len(requests) + sum(num_drafted))
        self.step_emitted.append(sum(num_emitted))
        if len(self._uncounted) >= COUNTED_TOGETHER:
            self._count()

    def _count(self) -> None:
        """Add the passes that are not counted yet to the requests' counts."""
        if not self._uncounted:
            return
        batches, *counts_of_passes = zip(*self._uncounted, strict=True)
        self._uncounted = []
        requests = list(dict.fromkeys(chain.from_iterable(batches)))
        place = dict(zip(requests, range(len(requests)), strict=True))
        request_of = np.fromiter(map(place.__getitem__, chain.from_iterable(batches)), np.int64)
        drafted, emitted = (np.fromiter(chain.from_iterable(counts), np.int64) for counts in counts_of_passes)
        steps = np.repeat(np.arange(len(self.step_live))[-len(batches) :], list(map(len, batches)))
        order = np.argsort(request_of, kind="stable")
        order = order[emitted[order] > 0]
        ends = np.searchsorted(request_of[order], np.arange(len(requests) + 1))
        drafted, emitted, steps = drafted[order], emitted[order], steps[order]
        for request, start, end in zip(requests, ends.tolist(), ends[1:].tolist(), strict=False):
            if start == end:
                continue
            counts, its_steps = request.counts, steps[start:end].tolist()
            if not counts.passes:
                counts.first_s = self.step_time_s[its_steps[0]]
            counts.passes += end - start
            counts.num_drafted += int(drafted[start:end].sum())
            counts.rounds += int(np.count_nonzero(drafted[start:end]))
            counts.emitted += emitted[start:end].tolist()
            counts.steps += its_steps
            counts.last_s = self.step_time_s[its_steps[-1]]

    def finished(self, noted: Callable[[Request], Plain] = lambda request: {}) -> dict[Request, Finished]:
        """Returns the response of each request that has emitted a token. noted: further fields of Finished."""
        return {request: self.one_finished(request, noted(request)) for request in self.requests}

    def one_finished(self, request: Request, noted: Plain) -> Finished:
        """Returns the response of a request. noted: further fields of Finished."""
        counts, tokens = request.counts, request.output_token_ids
        emitted = counts.emitted if counts.rounds else None
        costs = counts.passes, counts.num_drafted, counts.first_s, counts.last_s
        finished = Finished(*costs, name=request.asked, emitted=emitted, **noted)
        first = max(0, len(tokens) - sum(counts.emitted[-LAST_PASSES:]))
        behind = len(tokens) - end_of_response(request, first)
        return finished.cut(sum(counts.emitted) - behind) if behind else finished

    def report(self, finished: Mapping[Request, Finished]) -> RolloutReport:
        """Make the report: the counts of all requests and passes, and their sums. finished: the method's result."""
        step_emitted = list(self.step_emitted)
        for request, cost in finished.items():
            counts = request.counts
            kept = [1] * cost.passes if cost.emitted is None else list(cost.emitted)
            for place in range(max(0, len(kept) - 1), len(counts.steps)):  # only the last passes were cut
                step_emitted[counts.steps[place]] -= counts.emitted[place] - (kept[place] if place < len(kept) else 0)
        counted = {name: value for name, value in vars(self).items() if name != "began" and name[0] != "_"}
        return RolloutReport(
            **counted | {"step_emitted": step_emitted},
            draft_rounds=sum(request.counts.rounds for request in finished),
            decode_steps=len(self.step_time_s),
            tail_steps=sum(live <= TAIL for live in self.step_live),
        ).of_requests(list(finished.values()))
