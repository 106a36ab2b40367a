"""Simulated engines with a fixed number of sequences and a clock. An engine runs the passes of a rollout one by one."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from experiments.simulate.times import PassTimes, PassWork
from experiments.simulate.workload import Workload


class Timeline:
    """The passes of a rollout, with the end time and the counts of each pass."""

    def __init__(self) -> None:
        self._passes: list[tuple[np.ndarray, int, int, int]] = []

    def add(self, times: np.ndarray, live: int, tokens: int, emitted: int) -> None:
        """Add passes that differ only in their end times. times: in seconds since the rollout began [passes].

        live: number of requests. tokens: requests + drafted tokens. emitted: number of emitted tokens.
        """
        self._passes.append((times, live, tokens, emitted))

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays time_s, live, tokens and emitted, with one value for each pass."""
        names = ("time_s", "live", "tokens", "emitted")
        if not self._passes:
            return {name: np.empty(0) for name in names}
        times, *counts = zip(*self._passes, strict=True)
        repeats = [len(ends) for ends in times]
        return dict(zip(names, [np.concatenate(times), *(np.repeat(count, repeats) for count in counts)], strict=True))


class Engine:
    """Simulates the requests and the clock of one engine. Subclasses decide how drafts are made.

    max_num_seqs: the most requests that decode at once.
    """

    def __init__(self, times: PassTimes, max_num_seqs: int) -> None:
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, got {max_num_seqs}")
        self.times = times
        self.max_num_seqs = max_num_seqs

    def begin_step(self, work: Workload, requests: Sequence[int]) -> None:
        """Begin a rollout. These requests of `work` wait, in this order, until the engine can decode them."""
        self.work = work
        self.now = 0.0
        self.waiting = deque(requests)
        self.timeline = Timeline()
        self.passes = 0  # number of target passes, summed over requests
        self.num_drafted = self.num_accepted = 0  # draft tokens
        self.finished: dict[int, float] = {}  # when the last token of each finished request came
        # These have one entry for each live request.
        self._ids: list[int] = []
        self._at = np.empty(0, np.int64)  # position of its next token in work.tokens
        self._end = np.empty(0, np.int64)  # position after its last token
        self._context = 0  # tokens of prompt and response that all live requests have
        self._prompted: set[str] = set()  # problems whose prompt was computed in this rollout

    @property
    def live(self) -> int:
        """The number of requests that decode now."""
        return len(self._ids)

    def admit(self) -> list[int]:
        """Let waiting requests join the live ones while there is room. Returns the new ones.

        Their prompts are computed in the coming pass.
        """
        count = min(self.max_num_seqs - self.live, len(self.waiting))
        admitted = [self.waiting.popleft() for _ in range(count)]
        if admitted:
            starts = self.work.starts
            self._ids += admitted
            self._at = np.concatenate([self._at, starts[admitted]])
            self._end = np.concatenate([self._end, starts[np.asarray(admitted) + 1]])
            self._context += count * self.work.prompt
        return admitted

    def advance(self) -> None:
        """Admit waiting requests, then run one or more passes, at most until a request finishes."""
        raise NotImplementedError

    def close_step(self) -> None:
        """Note that the rollout is over on all engines."""

    def _pass(self, admitted: Sequence[int], **counts: int) -> PassWork:
        """Returns what a pass does. admitted: the requests that are new in it. counts: see PassWork."""
        new = {self.work.problems[i] for i in admitted} - self._prompted
        self._prompted |= new
        prompt = self.work.prompt
        return PassWork(joined=len(admitted), prompt=len(admitted) * prompt, new_prompt=len(new) * prompt, **counts)

    def _leave(self, done: np.ndarray) -> None:
        """Remove the live requests that finished in the pass. done: bool [live requests]."""
        for row in np.flatnonzero(done).tolist():
            self.finished[self._ids[row]] = self.now
            self._context -= int(self._end[row] - self.work.starts[self._ids[row]]) + self.work.prompt
        stay = ~done
        self._ids = [i for i, stays in zip(self._ids, stay.tolist(), strict=True) if stays]
        self._at, self._end = self._at[stay], self._end[stay]

    def _run_plain(self, admitted: Sequence[int]) -> None:
        """Run passes without drafts until the first live request finishes. All these passes are computed at once.

        admitted: requests whose prompts the first of these passes computes.
        """
        live, passes = self.live, int((self._end - self._at).min())
        seconds = self.times.plain(live, self._context, passes)
        if admitted:
            work = self._pass(admitted, live=live, drafted=0, context=self._context, emitted=live)
            seconds[0] = self.times.seconds(work)
        ends = self.now + np.cumsum(seconds)
        self.timeline.add(ends, live, live, live)
        self.now += float(seconds.sum())
        self.passes += live * passes
        self._at = self._at + passes
        self._context += live * passes
        self._leave(self._at == self._end)


class PlainEngine(Engine):
    """A simulated engine that makes no drafts."""

    def advance(self) -> None:
        self._run_plain(self.admit())
