"""A simulated engine that uses the real drafter and the real budget, and verifies drafts against recorded text.

A drafted token is accepted iff it equals the recorded token, as in the real engine with keyed sampling. The drafter and
the budget are called through DraftRound, as in the engine's proposer.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from das.budget import BudgetPolicy, LiveRequest, TargetPass, make_budget
from das.budget.policies import count_emitted
from das.draft_round import PLANNED_BY, DraftRound, Proposal, RowsAhead, admitted
from das.drafter import Drafter, Drafts, HistoryDrafter
from experiments.simulate.engine import Engine, PlainEngine
from experiments.simulate.times import PassTimes
from experiments.simulate.workload import Workload

PROMPT = 10**6  # recorded responses come without prompts: token ids of stand-in prompts start here
KNOWN_PROMPT = 128  # tokens of a stand-in prompt that the drafter sees
PLACEHOLDER = -1  # a planned token for which there is no draft


class TextEngine(Engine):
    """An engine that drafts with a real drafter and a real budget.

    max_tokens     the longest response allowed
    max_draft_tokens, max_rows  see DraftRound
    ahead          how many drafted tokens a pass verifies that is launched before the drafts are known; the likeliest
                   ones are. Or how many of each request, by what the budget chose for it in its last rounds, and the
                   most of all. None: drafts are known
    """

    def __init__(
        self,
        times: PassTimes,
        max_num_seqs: int,
        drafter: Drafter,
        budget: BudgetPolicy,
        max_tokens: int,
        max_draft_tokens: int | None = None,
        max_rows: int | None = None,
        ahead: Callable[[Sequence[Collection[int]], int], Sequence[int]] | RowsAhead | None = None,
    ) -> None:
        super().__init__(times, max_num_seqs)
        self.drafter = drafter
        self.draft_round = DraftRound(drafter, budget, max_draft_tokens, max_rows=max_rows)
        self._ahead = ahead
        self.max_tokens = max_tokens

    def begin_step(self, work: Workload, requests: Sequence[int]) -> None:
        super().begin_step(work, requests)
        self.draft_round.budget.begin_step(len(requests))
        max_draft_tokens = self.draft_round.max_draft_tokens
        self._requests: list[LiveRequest] = []  # one for each row of the arrays below
        self._num_drafts = np.empty(0, np.int64)  # draft tokens that the coming pass verifies
        self._drafts = np.empty((0, 0), np.int32)  # [requests, longest draft]
        self._asked = 0  # requests that were asked for these drafts
        self._wanted: dict[str, deque[int]] = {}  # tokens that the budget chose in a request's last rounds
        # Requests that finished in the last pass. In the next pass, drafter and budget learn of it.
        self._just_finished: list[LiveRequest] = []
        # Entry n counts how often a pass verified n draft tokens of a request, and how often it accepted n.
        self.drafts_of = np.zeros(max_draft_tokens + 1, np.int64)
        self.accepts_of = np.zeros(max_draft_tokens + 1, np.int64)
        self._prompt = np.arange(min(work.prompt, KNOWN_PROMPT), dtype=np.int32) + PROMPT
        # The padding lets a row's window reach beyond the end of the last response.
        self._text = np.concatenate([work.tokens, np.full(max_draft_tokens + 1, -1, np.int32)])
        self._remembered = work.remembered if self.drafter.remembers else None

    def advance(self) -> None:
        joined = self._join()
        live, num_drafted, context = len(self._requests), int(self._num_drafts.sum()), self._context
        before = self._at
        new_tokens = self._verify(num_drafted)
        emitted = sum(map(len, new_tokens))
        done = self._pass(
            self._ids[live - len(joined) :],
            live=live,
            drafted=num_drafted,
            context=context,
            emitted=emitted,
            asked=self._asked,
        )
        seconds = self.times.seconds(done)
        self.now += seconds
        self.timeline.add(np.array([self.now]), live, live + num_drafted, emitted)
        self._end_finished()
        for i, request in zip(self._ids[live - len(joined) :], joined, strict=True):
            sampling = self.work.sampling_of(i) if self.drafter.remembers else None
            self.draft_round.begin(request, self._prompt, seed=None if sampling is None else sampling.seed)
        # Budgets learn from decode passes: a pass with prompts takes longer.
        num_accepted = count_emitted(self._requests, new_tokens, self._num_drafts.tolist())
        self.num_accepted += num_accepted
        target_pass = TargetPass(live, num_drafted, num_accepted, context, seconds)
        self.draft_round.observe(
            self._requests, new_tokens, [] if joined else [target_pass], self._remembered_between(before, self._at)
        )
        self._draft()
        over = self._at == self._end
        if over.any():
            self._drop(over)

    def _remembered_between(self, start: np.ndarray, end: np.ndarray) -> np.ndarray | None:
        """The distributions of the tokens from start[i] to end[i] of each live request, one request after the other."""
        if self._remembered is None:
            return None
        places = start[:, None] + np.arange((end - start).max())
        return self._remembered[places[places < end[:, None]]]

    def _join(self) -> list[LiveRequest]:
        """Add waiting requests to the free rows of the batch, without drafts. Returns the new requests."""
        joined = [
            LiveRequest(f"{i}", self.work.problems[i], self.max_tokens, prompt=self.work.prompt) for i in self.admit()
        ]
        if joined:
            self._requests += joined
            self._num_drafts = np.pad(self._num_drafts, (0, len(joined)))
            self._drafts = np.pad(self._drafts, ((0, len(joined)), (0, 0)))
        return joined

    def _verify(self, num_drafted: int) -> list[list[int]]:
        """Emit the accepted part of each draft and one more token, but nothing beyond the response. Counts the tokens.

        num_drafted: drafted tokens of the batch. Returns each request's new tokens.
        """
        live, width = len(self._requests), int(self._num_drafts.max())
        window = self._text[self._at[:, None] + np.arange(width + 1)]
        remaining = self._end - self._at
        num_emitted = np.minimum(self._accepted(window) + 1, remaining)
        total = int(num_emitted.sum())
        self.passes += live
        self.num_drafted += num_drafted
        self.drafts_of += np.bincount(self._num_drafts, minlength=len(self.drafts_of))
        self.accepts_of += np.bincount(num_emitted - 1, minlength=len(self.accepts_of))
        self._at = self._at + num_emitted
        self._context += total
        return [text[:n] for text, n in zip(window.tolist(), num_emitted.tolist(), strict=True)]

    def _accepted(self, window: np.ndarray) -> np.ndarray:
        """Returns the number of accepted tokens of each draft, [requests]. window: the next recorded tokens [requests,
        longest draft + 1]."""
        width = window.shape[1] - 1
        if not width:
            return np.zeros(len(window), np.int64)
        wrong = (self._drafts[:, :width] != window[:, :width]) | (np.arange(width) >= self._num_drafts[:, None])
        return np.where(wrong.any(axis=1), wrong.argmax(axis=1), width)

    def _draft(self) -> None:
        """Ask for the drafts of the next pass."""
        live, planned = len(self._requests), self._planned()
        proposal = self.draft_round.propose(self._requests)
        self._note_wanted(proposal)
        if proposal is None:
            self._asked = 0
            self._num_drafts, self._drafts = np.zeros(live, np.int64), np.empty((live, 0), np.int32)
        else:
            self._asked = live
            self._num_drafts, self._drafts = np.asarray(proposal.counts, np.int64), proposal.drafts.tokens
        if planned is None:
            return
        if isinstance(self._ahead, RowsAhead):
            planned = self._lengths(proposal, int(planned[0]))
        counts = 0 if proposal is None else proposal.drafts.counts
        drafts, width = np.full((live, int(planned.max())), PLACEHOLDER, np.int32), self._drafts.shape[1]
        real = np.arange(drafts.shape[1]) < np.minimum(counts, planned)[:, None]
        drafts[real] = np.pad(self._drafts, ((0, 0), (0, max(0, drafts.shape[1] - width))))[:, : drafts.shape[1]][real]
        self._num_drafts, self._drafts = planned, drafts

    def _planned(self) -> np.ndarray | None:
        """Returns how many tokens of each request the coming pass verifies if it is launched before its drafts are
        known; None if it is not."""
        live = int((self._at < self._end).sum())
        joins = bool(self.waiting) and live < self.max_num_seqs
        if self._ahead is None or joins:
            return None
        if isinstance(self._ahead, RowsAhead):
            longest = self.draft_round.max_draft_tokens
            return np.array([min(longest * live, self._ahead.of(live, self.draft_round.room(live)) if live else 0)])
        wanted = [self._wanted.get(request.name, ()) for request in self._requests]
        return np.array(self._ahead(wanted, self.draft_round.room(len(wanted))))

    def _lengths(self, proposal: Proposal | None, total: int) -> np.ndarray:
        """Returns how many tokens of each request that goes on are verified, `total` together."""
        most = np.where(self._at < self._end, self.draft_round.max_draft_tokens, 0)
        none = np.zeros((len(most), 1))
        drafts = Drafts(none, none, none[:, 0].astype(np.int64)) if proposal is None else proposal.drafts
        return admitted(drafts, most, total)

    def _note_wanted(self, proposal: Proposal | None) -> None:
        if isinstance(self._ahead, RowsAhead):
            self._ahead.note(len(self._requests), 0 if proposal is None else sum(proposal.counts))
        before, self._wanted = self._wanted, {}
        if proposal is not None and any(proposal.counts):
            for request, count in zip(self._requests, proposal.counts, strict=True):
                self._wanted[request.name] = before.get(request.name, deque(maxlen=PLANNED_BY))
                self._wanted[request.name].append(count)

    def _drop(self, done: np.ndarray) -> None:
        """Free the rows of requests with complete responses. done: bool [requests]."""
        stay = ~done
        self._just_finished = [request for request, ended in zip(self._requests, done.tolist(), strict=True) if ended]
        self._requests = [request for request, stays in zip(self._requests, stay.tolist(), strict=True) if stays]
        self._num_drafts = self._num_drafts[stay]
        self._drafts = self._drafts[stay]
        self._leave(done)

    def _end_finished(self) -> None:
        for request in self._just_finished:
            self.draft_round.end(request)
        self._just_finished = []

    def close_step(self, next_history_tick: int) -> None:
        self._end_finished()
        self.draft_round.budget.end_step()
        self.drafter.move_window(next_history_tick)


# On a GPU das drafts at most 8 tokens for a request, and fills a graph (engine/patches/gpu.py).
DRAFTED = 8
GRAPHS = (*range(8, 256, 8), *range(256, 769, 16))  # rows of the graphs


@dataclass(frozen=True)
class Arm:
    """How an arm drafts. budget: its settings; None: no speculation. drafter: makes a new one. ahead: whether passes
    are launched before their drafts are known, as on a GPU."""

    budget: Mapping[str, Any] | None = None
    drafter: Callable[[], Drafter] = HistoryDrafter
    ahead: bool = False

    def engine(self, times: PassTimes, max_num_seqs: int, max_tokens: int, stands_for: float = 1.0) -> Engine:
        """Make a simulated engine. max_tokens: tokens of the longest response. stands_for: real requests for which each
        simulated one stands."""
        if self.budget is None:
            return PlainEngine(times, max_num_seqs)
        budget, drafter = make_budget(self.budget), self.drafter()
        if not self.ahead:
            return TextEngine(times, max_num_seqs, drafter, budget, max_tokens)
        drafted, graphs = min(DRAFTED, budget.max_draft_tokens), [max(1, round(rows / stands_for)) for rows in GRAPHS]
        return TextEngine(
            times, max_num_seqs, drafter, budget, max_tokens, drafted, graphs[-1], ahead=RowsAhead(graphs)
        )
