"""Simulated engines: slots, a clock, passes. The discrete events of a replay happen here, one engine at a time."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from das.replay.times import Times
from das.replay.workload import Workload


@dataclass
class Timeline:
    """Of every pass: when it ended (s since the rollout began), requests, tokens (requests + drafted), emitted."""

    time_s: list[np.ndarray] = field(default_factory=list)
    live: list[np.ndarray] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)
    emitted: list[np.ndarray] = field(default_factory=list)

    def add(self, times: np.ndarray, live: int, tokens: int, emitted: int) -> None:
        """Passes of one kind in a row."""
        self.time_s.append(times)
        for kept, value in ((self.live, live), (self.tokens, tokens), (self.emitted, emitted)):
            kept.append(np.full(len(times), value))

    def arrays(self) -> dict[str, np.ndarray]:
        """time_s, live, tokens, emitted: a value a pass."""
        found = {}
        for name in ("time_s", "live", "tokens", "emitted"):
            parts = getattr(self, name)
            found[name] = np.concatenate(parts) if parts else np.empty(0)
        return found


class Engine:
    """One engine's slots and clock. Subclasses decide how a pass drafts.

    slots: requests that decode at once.
    """

    def __init__(self, times: Times, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"an engine needs at least 1 slot, got {slots}")
        self.times = times
        self.slots = slots

    def begin_step(self, work: Workload, requests: Sequence[int]) -> None:
        """A rollout begins: these requests of `work` wait for slots, in this order."""
        self.work = work
        self.now = 0.0
        self.waiting = deque(requests)
        self.timeline = Timeline()
        self.passes = self.num_drafted = self.num_accepted = 0  # target passes of requests; draft tokens
        self.finished: dict[int, float] = {}  # request -> when its last token came
        self.draft_s = 0.0
        self.needed: dict[int, int] = {}  # request -> target passes it took
        self._at = np.empty(0, np.int64)  # position in work.tokens of each live request's next token
        self._taken = np.empty(0, np.int64)  # passes so far
        self._end = np.empty(0, np.int64)
        self._ids: list[int] = []
        self._context = 0  # tokens of prompt and response that live requests have

    @property
    def live(self) -> int:
        return len(self._ids)

    @property
    def free(self) -> int:
        return self.slots - len(self._ids)

    def admit(self) -> list[int]:
        """Fill free slots from the queue; the prompts are computed in the coming pass. Returns who came."""
        count = min(self.free, len(self.waiting))
        came = [self.waiting.popleft() for _ in range(count)]
        if came:
            starts = self.work.starts
            self._ids += came
            self._at = np.concatenate([self._at, starts[came]])
            self._end = np.concatenate([self._end, starts[np.asarray(came) + 1]])
            self._taken = np.concatenate([self._taken, np.zeros(count, np.int64)])
            self._context += count * self.work.prompt
        return came

    def advance(self) -> None:
        """Admit who waits, then run at least one pass, at most until a request finishes."""
        raise NotImplementedError

    def close_step(self) -> None:
        """The rollout is over on all engines."""

    def _leave(self, done: np.ndarray) -> None:
        """Requests that ended in the pass leave their slots."""
        for row in np.flatnonzero(done).tolist():
            self.finished[self._ids[row]] = self.now
            self.needed[self._ids[row]] = int(self._taken[row])
            self._context -= int(self._end[row] - self.work.starts[self._ids[row]]) + self.work.prompt
        stay = ~done
        self._ids = [i for i, kept in zip(self._ids, stay.tolist(), strict=True) if kept]
        self._at, self._end, self._taken = self._at[stay], self._end[stay], self._taken[stay]

    def _run_plain(self, came: int) -> None:
        """Passes without drafts until the first live request ends: all of them at once."""
        live, passes = self.live, int((self._end - self._at).min())
        seconds = self.times.plain(live, self._context, passes)
        seconds[0] += came * self.work.prompt * self.times.prefill
        self.timeline.add(self.now + np.cumsum(seconds), live, live, live)
        self.now += float(seconds.sum())
        self.passes += live * passes
        self._at = self._at + passes
        self._taken = self._taken + passes
        self._context += live * passes
        self._leave(self._at == self._end)


class PlainEngine(Engine):
    """No speculation."""

    def advance(self) -> None:
        self._run_plain(len(self.admit()))
