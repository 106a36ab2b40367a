"""A pool of engines at places. The pool starts, restarts and updates engines, and kills engines that fall silent.

Everything happens in the trainer's one thread. Each engine has at most one call under way. `next_event` waits for an
answer, an engine's death or a silence. While it waits, it brings engines that start or restart up to date: they start,
load the current weights and join a running evaluation. An engine that has done all this is *ready*.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from das.cluster.actor import versions_with
from das.cluster.broadcast import Sending, layouts, sender
from das.cluster.messages import ClusterError, Poll, WeightsPart, require_equal_versions, weights_checksum
from das.cluster.places import EngineLost, Places
from das.cluster.ray_places import RayPlaces
from das.cluster.settings import ClusterSettings
from das.engine.build import EngineSettings
from das.errors import EngineError

STARTS = 3  # a place is given up after so many failed starts of its engine in a row
LOOK_S = 1.0  # seconds between checks that the places work
OF_HOST = ("where", "start", "load_weights")  # methods of EngineHost; all others are those of RolloutEngine


@dataclass
class PoolEngine:
    """An engine, and the pool's notes about its state."""

    number: int  # never used twice
    place: int  # number of the place at which it runs
    actor: Any
    pid: int = 0
    node: str = ""
    doing: str = ""  # the method whose answer is awaited; empty: none
    pending: Any = None  # the places' reference to the answer
    asked: float = 0.0  # when that method was called
    started: bool = False
    proven: bool = False  # whether it has answered a call of RolloutEngine, so its start works
    weights: int = 0  # version of its weights
    broken: int = 0  # number of broken transfers of weights to it, in a row
    evaluating: bool = False
    live: int = 0  # number of requests at its last poll
    passes: int = -1  # number of passes up to its last poll
    progressed: float = 0.0  # when it last finished a pass, or had nothing to do


@dataclass
class Event:
    """An engine's answer or loss. method, answer: a call and its result. lost: why the engine is gone, or empty."""

    engine: PoolEngine
    method: str
    answer: Any = None
    lost: str = ""


@dataclass
class _Weights:
    version: int = 0
    checksum: str = ""
    # Kept for later engines: the parts themselves if they are broadcast, else arguments that stand for them in calls.
    parts: list[Any] = field(default_factory=list)
    check: Sequence[str] = ()


class EnginePool:
    """The engines of one trainer.

    Raises EngineError for settings with which no pool works. Raises ClusterError with a one-line message if the places
    have too little room for all engines or an engine does not start.
    """

    def __init__(
        self,
        cluster: ClusterSettings,
        engine: EngineSettings,
        kv_cache_gib: int = 1,
        threads: int = 1,
        weights_bytes: int = 0,
        device: torch.device | None = None,
        places: Places | None = None,
    ) -> None:
        """kv_cache_gib, threads: settings of each engine. weights_bytes: size of the policy. device: the trainer's
        device, from which weights may be broadcast; None: no broadcast. places: where the engines run; None: on Ray.
        """
        if not engine.row.keyed:
            raise EngineError("a cluster has no engines of method stock, which is vLLM without das: choose another one")
        if engine.tensor_parallel_size > 1:
            raise EngineError(
                f"tensor_parallel_size={engine.tensor_parallel_size}: engines of a cluster are one process each; set 1"
            )
        self.settings, self.engine = cluster, engine
        self._kv_cache_gib, self._threads = kv_cache_gib, threads
        self.engines: dict[int, PoolEngine] = {}
        self.restarts = 0  # engines that were started in place of lost ones
        self.receiving_s = 0.0  # processor time spent on receiving the answers of polls
        self.last_loss = ""
        self._engines_begun = 0
        self._weights = _Weights()
        self._sending: Sending | None = None  # the broadcast that is under way
        self._evaluating = self._stopped = False
        self._looked = 0.0  # when the places were last checked
        self._failed_starts: dict[int, int] = {}  # failed starts in a row at each place; every place has an entry
        self._places_begun = 0
        self._places = RayPlaces(cluster, threads, weights_bytes) if places is None else places
        try:
            self._broadcast_from = sender(cluster.weights, device, self._places.gpus > 0)
            self.resize(cluster.engines)
            self._places.require_room(cluster.engines)
            while not all(engine.started for engine in self.engines.values()):
                event = self.next_event()
                if event is not None and event.lost:
                    raise ClusterError(f"an engine of the cluster did not start: {event.lost}")
        except BaseException:
            self.close()
            raise

    # ---- how many ----

    def resize(self, engines: int) -> list[PoolEngine]:
        """Use this number of engines. New engines start in the background. Returns the surplus engines, newest first:
        call `dismiss` for each when it has no requests.
        """
        while len(self._failed_starts) < engines:
            place, self._places_begun = self._places_begun, self._places_begun + 1
            self._places.open(place)
            self._failed_starts[place] = 0
            self._start(place)
        places = sorted(self._failed_starts)[engines:]
        return [engine for engine in reversed(list(self.engines.values())) if engine.place in places]

    def dismiss(self, engine: PoolEngine) -> None:
        """End an engine for good."""
        self._kill(engine)
        self._close(engine.place)

    def _close(self, place: int) -> None:
        """Give a place back."""
        del self._failed_starts[place]
        self._places.close(place)

    def _start(self, place: int) -> None:
        """Start an engine at a place, in the background."""
        number, self._engines_begun = self._engines_begun, self._engines_begun + 1
        engine = self.engines[number] = PoolEngine(number, place, self._places.start_actor(place))
        self._call(engine, "where", self.engine.model)

    # ---- calls ----

    @property
    def ready(self) -> list[PoolEngine]:
        """Engines that are up to date and have no call under way."""
        return [engine for engine in self._free if not self._lacks(engine)]

    @property
    def _free(self) -> list[PoolEngine]:
        return [engine for engine in self.engines.values() if engine.started and not engine.doing]

    def _lacks(self, engine: PoolEngine) -> bool:
        return engine.weights != self.version or engine.evaluating != self._evaluating

    def call(self, engine: PoolEngine, method: str, *args: Any) -> None:
        """Call a method of RolloutEngine. The answer comes as an event."""
        assert not engine.doing, f"engine {engine.number} is called for {method} during {engine.doing}"
        self._call(engine, method, *args)

    def call_all(self, method: str, *args: Any) -> dict[int, Any]:
        """Wait until an engine is ready, then call all ready engines. Returns the answers of engines that survived."""
        answers: dict[int, Any] = {}
        while not answers:
            self.settle()
            asked = self.ready
            for engine in asked:
                self.call(engine, method, *args)
            waiting = {engine.number for engine in asked}
            while waiting & self.engines.keys():
                event = self.next_event()
                if event is not None and event.engine.number in waiting:
                    waiting.discard(event.engine.number)
                    if not event.lost:
                        answers[event.engine.number] = event.answer
        return answers

    def settle(self) -> None:
        """Wait until at least one engine is ready, and all engines that have started are ready."""
        while not self.ready or any(
            engine.doing or self._lacks(engine) for engine in self.engines.values() if engine.started
        ):
            self.next_event()

    def load_weights(self, parts: Sequence[WeightsPart], check: Sequence[str]) -> str:
        """Let all engines, also later ones, compute with these weights. Returns, in words, which tensors did not
        arrive.

        check: names of tensors. After loading, each engine checks that its copies of these tensors equal the sent ones.
        """
        version = self._weights.version + 1
        self._weights = _Weights()  # frees the old ones first
        if self._broadcast_from is None:
            checksum = weights_checksum(parts)
            self._weights = _Weights(version, checksum, [self._places.shared(part) for part in parts], check)
        else:
            self._weights = _Weights(version, parts=list(parts), check=check)
        try:
            self.settle()
        except WeightsLost as error:
            return str(error)
        if self._places.lasting:
            self._weights.parts = []  # all engines have them
        return ""

    @property
    def version(self) -> int:
        """The version of the weights that engines must compute with."""
        return self._weights.version

    def evaluate(self, begins: bool) -> None:
        """Begin or end an evaluation on all engines. begins: true for its begin, false for its end."""
        self._evaluating = begins
        self.settle()

    def next_event(self, timeout_s: float = 0.5) -> Event | None:
        """Wait for an engine's answer or loss. Returns None if no answer has come, or only the answer to a call that
        brings an engine up to date.
        """
        if self._stopped:
            raise ClusterError("the engines of the cluster were closed")
        self._require_places()
        self._bring_up_to_date()
        self._require_some()
        by_reference = {engine.pending: engine for engine in self.engines.values() if engine.doing}
        if not by_reference:
            return None
        answered = self._places.answered(list(by_reference), timeout_s)
        if (silent := self._silent(by_reference)) is not None:
            return self._lose(
                silent, f"it did not answer for {time.monotonic() - silent.asked:.0f} s (cluster.silent_s)"
            )
        return self._answered(by_reference[answered[0]]) if answered else None

    def _require_places(self) -> None:
        """Raise ClusterError if no engine can start at the places any more. They are checked every LOOK_S seconds."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            if broken := self._places.broken():
                raise ClusterError(broken)

    def _silent(self, by_reference: Mapping[Any, PoolEngine]) -> PoolEngine | None:
        """Returns an engine whose answer is overdue; None if there is none. by_reference: the engines that have a call
        under way."""
        now, start_s, silent_s = time.monotonic(), self.settings.start_s, self.settings.silent_s
        for reference, engine in by_reference.items():
            late = now - engine.asked > (silent_s if engine.started else start_s)
            # The trainer may have looked long ago: an answer that has come counts as in time.
            if late and not self._places.answered([reference], timeout_s=0):
                return engine
        return None

    def _call(self, engine: PoolEngine, method: str, *args: Any) -> None:
        if method in OF_HOST:
            engine.pending = self._places.call(engine.actor, method, *args)
        else:
            engine.pending = self._places.call(engine.actor, "call", method, *args)
        engine.doing, engine.asked = method, time.monotonic()

    def _answered(self, engine: PoolEngine) -> Event | None:
        """Take an engine's answer. Returns None if the call only brought the engine up to date."""
        method, start = engine.doing, time.thread_time()
        try:
            answer = self._places.answer(engine.pending)
        except EngineLost as error:
            return self._lose(engine, str(error))
        finally:
            engine.doing, engine.pending = "", None
        match method:
            case "where":
                engine.pid, engine.node, theirs = answer
                if theirs:
                    require_equal_versions(theirs, versions_with(self.engine.model))
                self._call(engine, "start", self.engine, self._kv_cache_gib, self._threads)
            case "start":
                engine.started = True
            case "load_weights":
                version, problem = answer
                if problem:
                    raise WeightsLost(f"engine {engine.number}: {problem}")
                engine.weights = version
            case "receive_weights":
                return self._received(engine, *answer)
            case "begin_evaluation" | "end_evaluation":
                engine.evaluating = method == "begin_evaluation"
            case "poll":
                self.receiving_s += time.thread_time() - start
                return self._progressed(engine, answer)
            case _:
                engine.live = 0  # only a poll leaves requests live
                engine.proven, self._failed_starts[engine.place] = True, 0
                return Event(engine, method, answer)
        return None

    def _received(self, engine: PoolEngine, version: int, problem: str, broken: str) -> Event | None:
        """Note how a broadcast to an engine ended. version, problem, broken: what RolloutEngine.receive_weights
        returned. A broken broadcast is repeated, because the cause may be another engine that died."""
        if problem:
            raise WeightsLost(f"engine {engine.number}: {problem}")
        engine.broken = engine.broken + 1 if broken else 0
        if engine.broken == STARTS:
            here = self._sending.broken if self._sending is not None else ""
            return self._lose(engine, f"{broken} (here: {here})" if here else broken)
        if not broken:
            engine.weights = version
        return None

    def _progressed(self, engine: PoolEngine, poll: Poll) -> Event:
        """Note the progress that an engine's answer `poll` shows. An engine that finishes no pass for too long counts
        as dead, like one that does not answer."""
        now = time.monotonic()
        if poll.passes != engine.passes or not engine.live:
            engine.progressed = now
        engine.passes, engine.live = poll.passes, poll.live
        if now - engine.progressed > self.settings.silent_s:
            return self._lose(engine, f"it finished no pass for {now - engine.progressed:.0f} s (cluster.silent_s)")
        return Event(engine, "poll", poll)

    def _bring_up_to_date(self) -> None:
        """Give the current weights to free engines that have started, and let these join or leave an evaluation."""
        weights = self._weights
        if self._broadcast_from is not None:
            self._broadcast([engine for engine in self._free if engine.weights != weights.version])
        for engine in self._free:
            if engine.weights != weights.version:
                if self._broadcast_from is None:
                    self._call(engine, "load_weights", weights.version, weights.checksum, weights.check, *weights.parts)
            elif engine.evaluating != self._evaluating:
                self._call(engine, "begin_evaluation" if self._evaluating else "end_evaluation")

    def _broadcast(self, engines: Sequence[PoolEngine]) -> None:
        """Send the current weights to these engines. While other engines receive, these wait for the next broadcast."""
        if self._sending is not None:
            if self._sending.failed:
                raise ClusterError(f"weights cannot be broadcast, set cluster.weights=store: {self._sending.failed}")
            if any(engine.doing == "receive_weights" for engine in self.engines.values()):
                return
            self._sending.close()
            self._sending = None
        if not engines:
            return
        assert self._broadcast_from is not None
        weights, address = self._weights, self._places.address()
        # Engines that wait for a frozen engine give up early, before they seem frozen themselves.
        patience_s = self.settings.silent_s / 2
        self._sending = Sending(weights.parts, address, len(engines), patience_s, self._broadcast_from)
        expected = layouts(weights.parts)
        for rank, engine in enumerate(engines, start=1):
            meeting = self._sending.meeting(rank)
            self._call(engine, "receive_weights", weights.version, meeting, expected, weights.check)

    # ---- losses ----

    def _lose(self, engine: PoolEngine, why: str) -> Event:
        """Kill an engine that is dead or seems dead, and start another one in its place."""
        self.last_loss = why
        doing = engine.doing
        if doing == "receive_weights" and self._sending is not None:
            self._sending.close()  # the other engines that receive would wait for it
        self._kill(engine)
        self._failed_starts[engine.place] += not engine.proven
        if self._failed_starts[engine.place] < STARTS:
            self.restarts += 1
            self._start(engine.place)
        else:
            self._close(engine.place)
        return Event(engine, doing, lost=why)

    def _kill(self, engine: PoolEngine) -> None:
        """Kill the engine's process, even if it is stopped or hangs."""
        del self.engines[engine.number]
        self._places.kill(engine.actor, engine.pid, engine.node)

    def _require_some(self) -> None:
        if not self.engines:
            raise ClusterError(f"no engine is left, and none of {STARTS} new ones started: {self.last_loss}")

    def stop(self) -> None:
        """Stop the pool: `next_event` raises ClusterError from now on. So a thread that waits in `next_event` leaves
        the pool, and then `close` can be called."""
        self._stopped = True

    def close(self) -> None:
        """End all engines, and release all resources of the places. No other thread may use the pool meanwhile."""
        if self._sending is not None:
            self._sending.close()
        for engine in list(self.engines.values()):
            self._kill(engine)
        self._places.disconnect()


class WeightsLost(ClusterError):
    """An engine does not hold the weights that the trainer sent."""
