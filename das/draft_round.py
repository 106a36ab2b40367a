"""DraftRound runs between two target passes (forward passes of the policy), and makes the drafts of the next pass.

The engine's proposer (das.engine.proposer) and the simulated engine of the harness (experiments.simulate) both call
DraftRound, so that a simulated rollout makes the same drafter and budget calls, in the same order, as a real one.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from operator import gt

import numpy as np

from das.budget import BudgetPolicy, LiveRequest, TargetPass
from das.budget.marginal import best_tokens
from das.drafter import Drafter, Drafts

UNLIMITED = 2**31
PLANNED_BY = 4  # the last rounds of a batch, by which the rows of a pass are planned


class RowsAhead:
    """Decides how many drafted tokens a pass verifies that begins before its drafts are known: as many for each live
    request as the budget chose in the last rounds on average. sizes: the rows of the graphs that a pass can be, in
    rising order, which are filled up; (): passes are no graphs."""

    def __init__(self, sizes: Sequence[int] = ()):
        self._sizes = sizes
        self._shares: deque[float] = deque(maxlen=PLANNED_BY)  # tokens for each live request

    @property
    def is_planned(self) -> bool:
        """Whether the next pass verifies drafted tokens."""
        return bool(self._shares)

    def note(self, live: int, chosen: int) -> None:
        """Note that the budget chose so many tokens of `live` requests' drafts. 0: the next pass verifies none."""
        if chosen:
            self._shares.append(chosen / live)
        else:
            self._shares.clear()

    def of(self, live: int, room: int) -> int:
        """Returns the drafted tokens of a pass of so many requests, at most `room`."""
        if not self._shares:
            return 0
        rows = live + round(live * sum(self._shares) / len(self._shares))
        at = bisect_left(self._sizes, rows)
        return min(room, (self._sizes[at] if at < len(self._sizes) else rows) - live)


def admitted(drafts: Drafts, most: np.ndarray, total: int) -> np.ndarray:
    """Returns how many tokens to verify for each request, int64 [requests], so that they are `total` together whatever
    was drafted: the drafted tokens that are likeliest to be accepted, and rows without a draft where these are too few.

    most: how many tokens each request can verify; together at least `total`.
    """
    possible = np.minimum(drafts.counts, most)
    have = min(total, int(possible.sum()))
    _, counts, _, _ = best_tokens(replace(drafts, counts=possible), np.zeros(have + 1), have)
    free = most - counts
    return counts + np.clip(total - have - (np.cumsum(free) - free), 0, free)


@dataclass(slots=True)
class Proposal:
    """The drafts for a batch of requests. The policy verifies the first `counts[i]` tokens of draft i; the budget cut
    the rest."""

    drafts: Drafts
    counts: list[int]


class DraftRound:
    """Runs one drafter and one budget through the passes of a rollout.

    drafter           several rounds may share one drafter (engines with one history)
    budget            belongs to this round alone
    max_draft_tokens  the longest draft that the caller can verify; None: the budget's maximum
    max_rows          the most rows (requests and drafted tokens) of a pass, for which the drafted tokens count that
                      are likeliest to be accepted; None: no such limit

    The budget's begin_step and end_step enclose a rollout. Where nobody announces rollouts, as in a server, they end
    between two passes, and requests that still run belong to the next one. Where the budget rests, `budget.limits(())`
    takes the place of `propose`. Whoever has the drafter moves its window, since several rounds may share it.

    After every target pass the caller calls, in this order: `end` for each request that finished before the pass,
    `begin` for each request that is new in the pass, `observe` with what the pass emitted, and `propose` for the drafts
    of the next pass. The caller verifies the drafts, and knows which row of the batch belongs to which request.
    """

    def __init__(
        self,
        drafter: Drafter,
        budget: BudgetPolicy,
        max_draft_tokens: int | None = None,
        max_rows: int | None = None,
    ) -> None:
        self.drafter = drafter
        self.budget = budget
        self.max_draft_tokens = budget.max_draft_tokens if max_draft_tokens is None else max_draft_tokens
        self.max_rows = UNLIMITED if max_rows is None else max_rows
        self.declined = False  # whether the budget let nobody draft in the last round

    def begin(
        self,
        request: LiveRequest,
        prompt: Sequence[int] | np.ndarray,
        earlier_tokens: Sequence[int] = (),
        seed: int | None = None,
    ) -> None:
        """Note that a request joins the batch. earlier_tokens: the response tokens that it already has, if it decoded
        elsewhere before. seed: the seed of the noise with which its tokens are sampled; None: unknown, or no noise.
        """
        self.drafter.begin(request.name, request.problem, prompt, seed)
        self.budget.begin(request)
        if earlier_tokens:
            self.drafter.observe(request.name, earlier_tokens)
            request.generated = len(earlier_tokens)

    def observe(
        self,
        requests: Sequence[LiveRequest],
        tokens: Sequence[Sequence[int]],
        target_passes: Sequence[TargetPass],
        remembered: np.ndarray | None = None,
    ) -> None:
        """Give the tokens that a target pass emitted to the drafter, and the pass to the budget. Passes of the same
        requests that verified no drafts may be given together.

        requests: they have counted these tokens (`count_emitted`). tokens: the token ids that each emitted.
        target_passes: the passes as the budget sees them, without those that it must not learn from, because they also
        computed prompts. remembered: the distribution from which each token was sampled, in the order of `tokens`
        (das.drafter.distributions); None: unknown.
        """
        for target_pass in target_passes:
            self.budget.observe_pass(target_pass)
        names = [request.name for request in requests]
        if names:
            self.drafter.observe_batch(names, tokens, remembered)

    def propose(self, requests: Sequence[LiveRequest], room: Sequence[int] | None = None) -> Proposal | None:
        """Returns drafts for the next pass, one for each request; None if no request may draft. Raises ValueError with
        one line for a budget whose numbers no engine can use.

        room: how many more tokens fit into each request's context after its next token; None: no such limit.
        """
        wanted = self.budget.limits(requests)
        if len(wanted) != len(requests):
            raise ValueError(f"{self._budget}.limits returned {len(wanted)} numbers for {len(requests)} requests")
        self.declined = not any(wanted)
        if self.declined:
            return None
        limits = self._cap(wanted, requests, room)
        if not any(limits):
            return None
        names = [request.name for request in requests]
        floors = self.budget.floors(requests)
        drafts = self.drafter.propose_batch(names, limits, floors)
        if int(drafts.counts.sum()) > (rows := self.room(len(drafts))):
            drafts = replace(drafts, counts=admitted(drafts, drafts.counts, rows))
        counts, most = self.budget.trim(requests, drafts), drafts.counts.tolist()
        if len(counts) != len(most) or min(counts) < 0 or any(map(gt, counts, most)):
            raise ValueError(f"{self._budget}.trim returned {counts} for drafts of {most} tokens")
        self.declined = not any(counts) and bool(drafts.counts.any())
        return Proposal(drafts, counts)

    def room(self, num_requests: int) -> int:
        """Returns how many drafted tokens a pass of so many requests can verify."""
        return max(0, self.max_rows - num_requests)

    @property
    def _budget(self) -> str:
        return type(self.budget).__name__

    def _cap(self, wanted: Sequence[int], requests: Sequence[LiveRequest], room: Sequence[int] | None) -> list[int]:
        """Returns the longest draft allowed for each request, in tokens: the smallest of the budget's limit (`wanted`),
        the request's remaining tokens, its own draft limit, its `room`, and the longest draft that the caller can
        verify."""
        limits = []
        longest = self.max_draft_tokens if self.room(len(requests)) else 0
        # These are comparisons, because min() of five values takes twice as long, and this runs in every pass.
        for limit, request, free in zip(wanted, requests, repeat(UNLIMITED) if room is None else room, strict=False):
            request.allowed = limit
            remaining = request.max_tokens - request.generated - 1
            if limit > longest:
                limit = longest
            if limit > request.limit:
                limit = request.limit
            if limit > remaining:
                limit = remaining
            if limit > free:
                limit = free
            limits.append(limit if limit > 0 else 0)
        return limits

    def end(self, request: LiveRequest, keep: bool = True) -> None:
        """Note that a request finished. keep=False: neither the history nor the budget learns from the request."""
        self.drafter.end(request.name, keep=keep)
        if keep:
            self.budget.end(request)
