"""Engines as actors of Ray: started, restarted, brought up to date, and killed when they fall silent.

Everything happens in the trainer's one thread. Each engine has at most one call under way. `next_event` waits for an
answer, an engine's death or a silence; while it waits, engines that start or restart go on by themselves: they start,
load the current weights and join a running evaluation. An engine that has all that is *ready*.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from das.cluster.actor import versions_with
from das.cluster.broadcast import Sending, layouts
from das.cluster.local_ray import connect, dead, one_line
from das.cluster.messages import ClusterError, Poll, WeightsPart, require_equal_versions, weights_checksum
from das.cluster.places import Places, kill_process
from das.cluster.settings import ClusterSettings
from das.engine.build import EngineSettings

STARTS = 3  # times in a row that the engine of a place may fail to start before the place is given up
LOOK_S = 1.0  # seconds between looks at Ray's own processes
OF_ACTOR = ("where", "start", "load_weights")  # its own methods; all others are those of RolloutEngine


@dataclass
class RayEngine:
    """An engine, and how far it is known to be."""

    number: int  # never used twice
    place: int  # where it runs (das/cluster/places.py)
    actor: Any
    pid: int = 0
    node: str = ""
    doing: str = ""  # the method that is called; empty: nothing
    pending: Any = None  # Ray's reference to the answer
    asked: float = 0.0  # when it was called
    started: bool = False
    proven: bool = False  # has answered its caller, so it can start, load weights and begin
    weights: int = 0  # version
    broken: int = 0  # transfers of weights to it that broke, in a row
    evaluating: bool = False
    live: int = 0  # requests that it had at its last poll
    passes: int = -1  # that it had finished by then
    progressed: float = 0.0  # when it last finished one, or had nothing to do


@dataclass
class Event:
    """Something that an engine's caller must know. answer: of `method`; lost: why the engine is gone."""

    engine: RayEngine
    method: str
    answer: Any = None
    lost: str = ""


@dataclass
class _Weights:
    version: int = 0
    checksum: str = ""
    # Kept for engines that come later: the parts themselves, to be broadcast, or Ray's references to them.
    parts: list[Any] = field(default_factory=list)
    check: Sequence[str] = ()


class RayEngines:
    """The engines of one trainer.

    Raises ClusterError, in one line, where Ray cannot be reached, has too little room for all engines, or an engine
    does not start.
    """

    def __init__(
        self,
        cluster: ClusterSettings,
        engine: EngineSettings,
        kv_cache_gib: int = 1,
        threads: int = 1,
        weights_bytes: int = 0,
        device: torch.device | None = None,
    ) -> None:
        """kv_cache_gib, threads: of each engine. weights_bytes: size of the policy. device: the trainer's; None: there
        are no weights to send.
        """
        self.settings = cluster
        self._engine_settings, self._kv_cache_gib, self._threads = engine, kv_cache_gib, threads
        self.engines: dict[int, RayEngine] = {}
        self.restarts = 0  # engines that were started in place of lost ones
        self.receiving_s = 0.0  # of processor time, spent to take answers of turns out of Ray
        self.last_loss = ""
        self._engines_begun = 0
        self._weights = _Weights()
        self._sending: Sending | None = None  # the broadcast that is under way
        self._evaluating = self._stopped = False
        self._looked = 0.0  # when Ray's own processes were looked at
        self._ray, self._disconnect = connect(cluster, threads, weights_bytes)
        try:
            self._places = Places(self._ray, cluster, threads)
            self._broadcast_from = self._sender(device)
            self.resize(cluster.engines)
            self._places.require_room()
            while not all(engine.started for engine in self.engines.values()):
                event = self.next_event()
                if event is not None and event.lost:
                    raise ClusterError(f"an engine of the cluster did not start: {event.lost}")
        except BaseException:
            self.close()
            raise

    def _sender(self, device: torch.device | None) -> torch.device | None:
        """The device of this process from which weights are broadcast; None: they go through Ray's object store."""
        how = self.settings.weights
        if device is None or how == "store":
            return None
        if not self._places.gpus:
            return torch.device("cpu") if how == "broadcast" else None
        if device.type == "cuda":
            return device
        if how == "broadcast":
            raise ClusterError(
                "cluster.weights=broadcast: engines have GPUs and the trainer has none, so they share no network for "
                "weights; set cluster.weights=store"
            )
        return None

    # ---- how many ----

    def resize(self, engines: int) -> list[RayEngine]:
        """Have so many engines. New ones start in the background. Returns those that are too many, the newest first:
        `dismiss` them when they hold nothing more.
        """
        while len(self._places.opened) < engines:
            self._start(self._places.open())
        places = sorted(self._places.opened)[engines:]
        return [engine for engine in reversed(list(self.engines.values())) if engine.place in places]

    def dismiss(self, engine: RayEngine) -> None:
        """End an engine for good."""
        self._kill(engine)
        self._places.close(engine.place)

    def _start(self, place: int) -> None:
        """Start an engine at a place, in the background."""
        number, self._engines_begun = self._engines_begun, self._engines_begun + 1
        engine = self.engines[number] = RayEngine(number, place, self._places.start_actor(place))
        self._call(engine, "where", self._engine_settings.model)

    # ---- calls ----

    @property
    def ready(self) -> list[RayEngine]:
        """Engines that are up to date and have no call under way."""
        return [engine for engine in self._free if not self._lacks(engine)]

    @property
    def _free(self) -> list[RayEngine]:
        return [engine for engine in self.engines.values() if engine.started and not engine.doing]

    def _lacks(self, engine: RayEngine) -> bool:
        return engine.weights != self.version or engine.evaluating != self._evaluating

    def call(self, engine: RayEngine, method: str, *args: Any) -> None:
        """Call a method of RolloutEngine. The answer comes as an event."""
        assert not engine.doing, f"engine {engine.number} is called for {method} during {engine.doing}"
        self._call(engine, method, *args)

    def call_all(self, method: str, *args: Any) -> dict[int, Any]:
        """The answers of all engines that are ready, or become so first if none is. Engines that are lost have none."""
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
        """Wait until every engine that has started is ready, and at least one is."""
        while not self.ready or any(
            engine.doing or self._lacks(engine) for engine in self.engines.values() if engine.started
        ):
            self.next_event()

    def load_weights(self, parts: Sequence[WeightsPart], check: Sequence[str]) -> str:
        """Have all engines compute with these weights, also those that start later. Says what did not arrive.

        check: names of the tensors that the engines compare with what they hold.
        """
        version = self._weights.version + 1
        self._weights = _Weights()  # frees the old ones in the object store first
        if self._broadcast_from is None:
            self._weights = _Weights(version, weights_checksum(parts), [self._ray.put(part) for part in parts], check)
        else:
            self._weights = _Weights(version, parts=list(parts), check=check)
        try:
            self.settle()
        except WeightsLost as error:
            return str(error)
        return ""

    @property
    def version(self) -> int:
        """The version of the weights that engines must compute with."""
        return self._weights.version

    def evaluate(self, begins: bool) -> None:
        """An evaluation begins or ends, on all engines."""
        self._evaluating = begins
        self.settle()

    def next_event(self, timeout_s: float = 0.5) -> Event | None:
        """Wait for an engine's answer or loss; None if nothing has come. What brings engines up to date is not told."""
        if self._stopped:
            raise ClusterError("the engines of the cluster were closed")
        self._require_ray()
        self._bring_up_to_date()
        self._require_some()
        by_reference = {engine.pending: engine for engine in self.engines.values() if engine.doing}
        if not by_reference:
            return None
        answered, _ = self._ray.wait(list(by_reference), num_returns=1, timeout=timeout_s)
        if (silent := self._silent(by_reference)) is not None:
            return self._lose(
                silent, f"it did not answer for {time.monotonic() - silent.asked:.0f} s (cluster.silent_s)"
            )
        return self._answered(by_reference[answered[0]]) if answered else None

    def _require_ray(self) -> None:
        """Raise ClusterError once Ray cannot start anything any more. It looks every LOOK_S seconds."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            if gone := dead(self._ray):
                raise ClusterError(f"Ray cannot go on: its process {gone} has died")

    def _silent(self, by_reference: Mapping[Any, RayEngine]) -> RayEngine | None:
        """An engine that ought to have answered long ago and has not, also while others answer all the time."""
        now, start_s, silent_s = time.monotonic(), self.settings.start_s, self.settings.silent_s
        late = [
            reference
            for reference, each in by_reference.items()
            if now - each.asked > (silent_s if each.started else start_s)
        ]
        if not late:
            return None
        # The trainer may not have looked for long: an answer that is there was in time.
        there, _ = self._ray.wait(late, num_returns=len(late), timeout=0)
        return next((by_reference[reference] for reference in late if reference not in there), None)

    def _call(self, engine: RayEngine, method: str, *args: Any) -> None:
        if method in OF_ACTOR:
            engine.pending = getattr(engine.actor, method).remote(*args)
        else:
            engine.pending = engine.actor.call.remote(method, *args)
        engine.doing, engine.asked = method, time.monotonic()

    def _answered(self, engine: RayEngine) -> Event | None:
        """Take an engine's answer. Returns None if the call only brought the engine up to date."""
        method, start = engine.doing, time.thread_time()
        try:
            answer = self._ray.get(engine.pending)
        except self._ray.exceptions.RayError as error:
            return self._lose(engine, one_line(error))
        engine.doing, engine.pending = "", None
        match method:
            case "where":
                engine.pid, engine.node, theirs = answer
                require_equal_versions(theirs, versions_with(self._engine_settings.model))
                self._call(engine, "start", self._engine_settings, self._kv_cache_gib, self._threads)
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
                engine.proven, self._places.opened[engine.place].failed_starts = True, 0
                return Event(engine, method, answer)
        return None

    def _received(self, engine: RayEngine, version: int, problem: str, broken: str) -> Event | None:
        """Note what became of a broadcast. One that broke is tried again: somebody else may have died amid it."""
        if problem:
            raise WeightsLost(f"engine {engine.number}: {problem}")
        engine.broken = engine.broken + 1 if broken else 0
        if engine.broken == STARTS:
            here = self._sending.broken if self._sending is not None else ""
            return self._lose(engine, f"{broken} (here: {here})" if here else broken)
        if not broken:
            engine.weights = version
        return None

    def _progressed(self, engine: RayEngine, poll: Poll) -> Event:
        """Note how far an engine is. One whose requests stand still is as dead as one that does not answer."""
        now = time.monotonic()
        if poll.passes != engine.passes or not engine.live:
            engine.progressed = now
        engine.passes, engine.live = poll.passes, poll.live
        if now - engine.progressed > self.settings.silent_s:
            return self._lose(engine, f"it finished no pass for {now - engine.progressed:.0f} s (cluster.silent_s)")
        return Event(engine, "poll", poll)

    def _bring_up_to_date(self) -> None:
        """Give engines that have started and are free what they lack."""
        weights = self._weights
        if self._broadcast_from is not None:
            self._broadcast([engine for engine in self._free if engine.weights != weights.version])
        for engine in self._free:
            if engine.weights != weights.version:
                if self._broadcast_from is None:
                    self._call(engine, "load_weights", weights.version, weights.checksum, weights.check, *weights.parts)
            elif engine.evaluating != self._evaluating:
                self._call(engine, "begin_evaluation" if self._evaluating else "end_evaluation")

    def _broadcast(self, engines: Sequence[RayEngine]) -> None:
        """Send the current weights to these engines; while other ones receive, they wait for the next broadcast."""
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
        weights, address = self._weights, self._ray.util.get_node_ip_address()
        # Those that wait for one that is frozen give up before they count as frozen themselves.
        patience_s = self.settings.silent_s / 2
        self._sending = Sending(weights.parts, address, len(engines), patience_s, self._broadcast_from)
        expected = layouts(weights.parts)
        for rank, engine in enumerate(engines, start=1):
            meeting = self._sending.meeting(rank)
            self._call(engine, "receive_weights", weights.version, meeting, expected, weights.check)

    # ---- losses ----

    def _lose(self, engine: RayEngine, why: str) -> Event:
        """An engine is dead, or taken for dead: make sure of it, and start another one in its place."""
        self.last_loss = why
        doing = engine.doing
        if doing == "receive_weights" and self._sending is not None:
            self._sending.close()  # the other engines that receive would wait for it
        self._kill(engine)
        place = self._places.opened[engine.place]
        place.failed_starts += not engine.proven
        if place.failed_starts < STARTS:
            self.restarts += 1
            self._start(engine.place)
        else:
            self._places.close(engine.place)
        return Event(engine, doing, lost=why)

    def _kill(self, engine: RayEngine) -> None:
        """Kill the engine's process, even if it is stopped or hangs."""
        del self.engines[engine.number]
        self._places.kill_actor(engine.actor, engine.pid, engine.node)

    def _require_some(self) -> None:
        if not self.engines:
            raise ClusterError(f"no engine is left, and none of {STARTS} new ones started: {self.last_loss}")

    def stop(self) -> None:
        """Have what another thread waits for end with ClusterError, so that `close` can be called."""
        self._stopped = True

    def close(self) -> None:
        """End all engines and the connection to Ray. No other thread may use them."""
        if self._sending is not None:
            self._sending.close()
        for engine in list(self.engines.values()):
            if not dead(self._ray):
                self._kill(engine)
            elif engine.pid:  # nobody would answer
                kill_process(engine.pid)
        self.engines.clear()
        self._disconnect()


class WeightsLost(ClusterError):
    """An engine does not hold what it was sent."""
