"""One rollout on simulated engines whose requests a Dispatcher places while it runs, as on a real cluster.

Engines may join, die and drain amid the rollout. Answers cost no time here: an engine asks for requests whenever one of
its own finishes.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from das.cluster.dispatcher import Dispatcher
from das.cluster.history_store import HistoryStore
from das.drafter.saved import SavedText
from das.replay.cluster import Step, end_rollout, report
from das.replay.engine import Engine
from das.replay.text_engine import TextEngine
from das.replay.workload import Workload


@dataclass(frozen=True)
class Change:
    """Something happens to an engine amid the rollout. An engine that joins takes no part before."""

    time_s: float
    engine: int
    kind: Literal["joined", "died", "draining"]


@dataclass(frozen=True)
class Dispatched:
    """A rollout: what it cost, and what happened on which engine.

    events: rows of engines.jsonl: engine, time_s, live (requests from then on), event: joined, draining, lost, or empty
    where only `live` changed.
    """

    step: Step
    lost: list[tuple[float, int]]  # requests that had to start again, each with the second of its engine's death
    sent_bytes: int  # of token ids that the store gave to engines
    events: list[dict[str, Any]]


def simulate_dispatched(
    work: Workload,
    engines: Sequence[Engine],
    placement: Dispatcher,
    next_history_tick: int,
    changes: Sequence[Change] = (),
    store: HistoryStore | None = None,
) -> Dispatched:
    """Simulate the rollout of one step. The engine whose clock is earliest goes on, until everything is delivered.

    engines: number e of the placement is engines[e]. store: gives engines with text the histories that they lack, and
    learns what they finish; None: they know only what they made, or share a drafter.

    Raises ValueError if requests remain and no engine takes part any more.
    """
    return _Rollout(work, engines, placement, changes, store).run(next_history_tick)


class _Rollout:
    def __init__(
        self,
        work: Workload,
        engines: Sequence[Engine],
        placement: Dispatcher,
        changes: Sequence[Change],
        store: HistoryStore | None,
    ) -> None:
        self.work, self.engines, self.placement, self.store = work, engines, placement, store
        self.changes = sorted(changes, key=lambda change: (change.time_s, change.engine))
        self.part: set[int] = set()  # engines that take part
        self.busy: list[tuple[float, int]] = []  # a heap: when each engine that works has run its next passes
        self.told: dict[int, int] = {}  # how many finished requests of an engine were delivered
        self.live: dict[int, int] = {}  # what the last row of events said
        self.lost: list[tuple[float, int]] = []
        self.sent_bytes = 0
        self.events: list[dict[str, Any]] = []
        self.end_s = 0.0

    def run(self, next_history_tick: int) -> Dispatched:
        late = {change.engine for change in self.changes if change.kind == "joined"}
        at_start = [e for e in range(len(self.engines)) if e not in late]
        for engine in self.engines:
            engine.begin_step(self.work, [])
        for e in at_start:
            self._join(e, 0.0)
        for e in at_start:
            self._work(e, 0.0)
        while not self.placement.done:
            if self.changes and (not self.busy or self.changes[0].time_s <= self.busy[0][0]):
                self._change(self.changes.pop(0))
                continue
            if not self.busy:
                raise ValueError(f"no engine takes part any more, and {self.placement.waiting} requests wait")
            now, e = heapq.heappop(self.busy)
            if e in self.part:
                self._deliver(e, now)
                self._work(e, now)
        end_rollout([self.engines[e] for e in sorted(self.part)], next_history_tick)
        if self.store is not None:
            self.store.end_step(next_history_tick)
        return Dispatched(report(self.work, self.engines, self.end_s), self.lost, self.sent_bytes, self.events)

    def _join(self, e: int, now: float) -> None:
        engine = self.engines[e]
        engine.now = now
        self.part.add(e)
        self.told[e] = 0
        self.placement.joined(e, engine.max_num_seqs)
        self._note(e, now, "joined")

    def _work(self, e: int, now: float) -> None:
        """Take requests and run the next passes. An engine without requests idles until something changes."""
        engine = self.engines[e]
        taken = self.placement.take(e)
        if self.store is not None and isinstance(engine, TextEngine):
            lacked = self.store.missing(e, [self.work.problems[i] for i in taken])
            engine.drafter.add_history(lacked)
            self.sent_bytes += sum(trajectory.tokens.nbytes for trajectory in lacked)
        engine.add(taken, self.placement.waiting)
        if not engine.live and not engine.waiting:
            self._note(e, now, "")
            return
        self._note(e, now, "", min(engine.max_num_seqs, engine.live + len(engine.waiting)))
        engine.until = self.changes[0].time_s if self.changes else np.inf
        engine.now = max(engine.now, now)
        engine.advance()
        heapq.heappush(self.busy, (engine.now, e))

    def _deliver(self, e: int, now: float) -> None:
        """Hand over what the engine finished."""
        engine = self.engines[e]
        finished = list(engine.finished)[self.told[e] :]
        self.told[e] += len(finished)
        for request in finished:
            self.end_s = now
            self.placement.finished(e, request)
            if self.store is not None and isinstance(engine, TextEngine):
                text = engine.text(request)
                self.store.add(SavedText(text.problem, text.history_tick, text.context, text.tokens), e)

    def _change(self, change: Change) -> None:
        if change.kind == "joined":
            self._join(change.engine, change.time_s)
        elif change.engine not in self.part:
            raise ValueError(
                f"engine {change.engine} takes no part at {change.time_s:g} s: it cannot have {change.kind}"
            )
        elif change.kind == "draining":
            self.placement.draining(change.engine)
            self._note(change.engine, change.time_s, "draining", self.live[change.engine])
        else:
            self.part.remove(change.engine)
            self.lost += [(change.time_s, request) for request in self.placement.lost(change.engine)]
            if self.store is not None:
                self.store.forget(change.engine)
            self._note(change.engine, change.time_s, "lost", 0)
        working = {e for _, e in self.busy}
        for e in sorted(self.part - working):  # engines that idle: there may be requests again
            self._work(e, change.time_s)

    def _note(self, e: int, now: float, event: str, live: int | None = None) -> None:
        """Write a row if there is something new."""
        live = self.engines[e].live if live is None else live
        if event or self.live.get(e) != live:
            self.events.append({"engine": e, "time_s": now, "live": live, "event": event})
        self.live[e] = live
