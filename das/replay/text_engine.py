"""An engine whose drafts come from the real drafter within the real budget, verified against the recorded text.

A drafted token is accepted iff it is the recorded one: with keyed sampling that is what the real engine would do. Calls
to drafter and budget are those of das.engine.proposer, in its order.
"""

from collections.abc import Sequence

import numpy as np

from das.budget import BudgetPolicy, LiveRequest, TargetPass
from das.drafter import HistoryDrafter
from das.replay.engine import Engine
from das.replay.times import Times
from das.replay.workload import Workload

PROMPT = 10**6  # token ids of stand-in prompts start here: recorded responses come without their prompts
KNOWN_PROMPT = 128  # tokens of a stand-in prompt that the drafter sees


class TextEngine(Engine):
    """drafter: may be shared by engines. budget: this engine's own. most: tokens a response may have."""

    def __init__(
        self, times: Times, slots: int, drafter: HistoryDrafter, budget: BudgetPolicy, most: int, name: str = ""
    ) -> None:
        super().__init__(times, slots)
        self.drafter = drafter
        self.budget = budget
        self.most = most
        self._name = name

    def begin_step(self, work: Workload, requests: Sequence[int]) -> None:
        super().begin_step(work, requests)
        longest = int(work.lengths.max())
        if longest > self.most:
            raise ValueError(f"a response has {longest} tokens, more than the limit of {self.most}")
        self.budget.begin_step(len(requests))
        self._rows: list[LiveRequest] = []
        self._names: list[str] = []
        self._ended: list[LiveRequest] = []  # finished in the pass before: told to drafter and budget in this one
        self._kept = np.empty(0, np.int64)  # draft tokens that the coming pass verifies
        self._drafts = np.empty((0, 0), np.int32)
        self._drafting = 0.0  # seconds spent on them
        # Requests and passes by tokens drafted, and by tokens accepted.
        self.drafts_of = np.zeros(self.budget.max_draft_tokens + 1, np.int64)
        self.accepts_of = np.zeros(self.budget.max_draft_tokens + 1, np.int64)
        self._prompt = np.arange(min(work.prompt, KNOWN_PROMPT), dtype=np.int32) + PROMPT
        # A row's window may reach beyond the last response.
        self._text = np.concatenate([work.tokens, np.full(self.budget.max_draft_tokens + 1, -1, np.int32)])

    def advance(self) -> None:
        came = self.admit()
        for i in came:
            self._rows.append(
                LiveRequest(f"{self._name}{i}", self.work.problems[i], self.most, prompt=self.work.prompt)
            )
            self._names.append(self._rows[-1].name)
        if came:
            self._kept = np.concatenate([self._kept, np.zeros(len(came), np.int64)])
            width = self._drafts.shape[1]
            self._drafts = np.concatenate([self._drafts, np.zeros((len(came), width), np.int32)])
        rows, batch = self._rows, len(self._rows)
        drafted, context = int(self._kept.sum()), self._context
        seconds = self.times.target(batch, drafted, context) + self._drafting
        seconds += len(came) * self.work.prompt * self.times.prefill
        self.now += seconds

        # Verification: the accepted prefix and one token more, as far as the response goes.
        width = int(self._kept.max())
        window = self._text[self._at[:, None] + np.arange(width + 1)]
        wrong = (self._drafts[:, :width] != window[:, :width]) | (np.arange(width) >= self._kept[:, None])
        left = self._end - self._at
        right = np.where(wrong.any(axis=1), wrong.argmax(axis=1), width) if width else np.zeros(batch, np.int64)
        right = np.minimum(right, left)
        emitted = np.minimum(right + 1, left)
        accepted, total = int(right.sum()), int(emitted.sum())
        self.timeline.add(np.array([self.now]), batch, batch + drafted, total)
        self.passes += batch
        self.drafted += drafted
        self.accepted += accepted
        self.drafts_of += np.bincount(self._kept, minlength=len(self.drafts_of))
        self.accepts_of += np.bincount(right, minlength=len(self.accepts_of))
        self._at = self._at + emitted
        self._taken = self._taken + 1
        self._context += total

        # From here on: das.engine.proposer.DasProposer.propose.
        self._tell_ended()
        for live in rows[batch - len(came) :]:
            self.drafter.begin(live.name, live.problem, self._prompt)
            self.budget.begin(live)
        counts = zip(rows, self._kept.tolist(), right.tolist(), emitted.tolist(), strict=True)
        for live, asked, good, new in counts:
            live.num_drafted += asked
            live.num_accepted += good
            live.passes += 1
            live.generated += new
        if not came:  # prompts are not decoded
            self.budget.observe_pass(TargetPass(batch, drafted, accepted, context, seconds))
        new_tokens = [text[:new] for text, new in zip(window.tolist(), emitted.tolist(), strict=True)]
        self.drafter.observe_batch(self._names, new_tokens)
        self._draft()
        done = self._at == self._end
        if done.any():
            self._drop(done)

    def _draft(self) -> None:
        rows, longest, most = self._rows, self.budget.max_draft_tokens, self.most - 1
        asked = self.budget.limits(rows)
        limits = [max(0, min(longest, most - live.generated, a)) for live, a in zip(rows, asked, strict=True)]
        self._drafting = 0.0
        if not any(limits):
            self._kept, self._drafts = np.zeros(len(rows), np.int64), np.empty((len(rows), 0), np.int32)
            return
        proposed = self.drafter.propose_batch(self._names, limits, self.budget.floors(rows))
        self._kept = np.asarray(self.budget.trim(rows, proposed), np.int64)
        self._drafts = proposed.tokens.copy()  # an engine that shares the drafter overwrites them with its own
        times = self.times
        self._drafting = times.draft_request * len(rows) + times.draft_token * int(proposed.counts.sum())
        self.draft_s += self._drafting

    def _drop(self, done: np.ndarray) -> None:
        stay = ~done
        self._ended = [live for live, ended in zip(self._rows, done.tolist(), strict=True) if ended]
        self._rows = [live for live, kept in zip(self._rows, stay.tolist(), strict=True) if kept]
        self._names = [live.name for live in self._rows]
        self._kept = self._kept[stay]
        self._drafts = self._drafts[stay]
        self._leave(done)

    def _tell_ended(self) -> None:
        for live in self._ended:
            self.drafter.end(live.name)
            self.budget.end(live)
        self._ended = []

    def close_step(self) -> None:
        """Tell drafter and budget of the last requests; before the drafter's own end of step."""
        self._tell_ended()
        self.budget.end_step()
