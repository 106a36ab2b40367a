"""A pool of engines, which are actors of Ray. The pool starts, restarts and updates engines, and kills those that fall
silent.

Everything happens in the trainer's one thread. Ray runs an engine's calls in the order in which they were made. So the
first calls of a new engine bring it up to date: it starts and loads the current weights. An engine that has answered
all its calls is *ready*. `next_event` waits for an answer, an engine's death or a silence.
"""

import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from das.cluster.connection import ClusterSettings, connect
from das.cluster.rollout_engine import RolloutEngine, WeightsPart
from das.engine.settings import EngineSettings
from das.general.errors import ClusterError, EngineError, reason_of

STARTS = 3  # a place is given up after so many failed starts of its engine in a row
WAIT_S = 0.5  # seconds for which `next_event` waits at most
UPDATES = ("start", "load_weights")  # calls that bring an engine up to date


@dataclass
class PoolEngine:
    """An engine, and the pool's notes about its state."""

    number: int  # never used twice
    actor: Any
    failed_starts: int  # of engines before it at its place, in a row
    calls: deque[tuple[str, Any]] = field(default_factory=deque)  # awaited answers: methods, and Ray's references
    asked: float = 0.0  # when the first of these calls was made, or the answer before it came
    pid: int = 0  # 0: it has not started yet
    proven: bool = False  # whether it has answered a call that is no update, so its start works


@dataclass
class Event:
    """An engine's answer or loss. method, answer: a call and its result. lost: why the engine is gone, or empty."""

    engine: PoolEngine
    method: str
    answer: Any = None
    lost: str = ""


class EnginePool:
    """The engines of one trainer.

    Raises EngineError for settings with which no pool works. Raises ClusterError with a one-line message if Ray has too
    little room for all engines or an engine does not start.
    """

    def __init__(self, cluster: ClusterSettings, engine: EngineSettings, threads: int = 1) -> None:
        """threads: of each engine."""
        if engine.tensor_parallel_size > 1:
            raise EngineError(
                f"tensor_parallel_size={engine.tensor_parallel_size}: engines of a cluster are one process each; set 1"
            )
        self.settings, self.engine = cluster, engine
        self._threads = threads
        self.engines: dict[int, PoolEngine] = {}
        self.restarts = 0  # engines that were started in place of lost ones
        self.receiving_s = 0.0  # processor time spent on receiving the answers of polls
        self._numbers = itertools.count()
        self._version = 0  # number of the current weights
        self._weights: tuple[Any, ...] = ()  # the arguments of `load_weights` for them; Ray's references to the parts
        self._stopped = False
        self._last_loss = ""
        self._ray, self._disconnects = connect(cluster, cluster.engines * threads)
        try:
            self._actor = self._ray.remote(RolloutEngine).options(num_cpus=threads, num_gpus=self._gpus())
            for _ in range(cluster.engines):
                self._start()
            while not all(engine.pid for engine in self.engines.values()):
                event = self.next_event()
                if event is not None and event.lost:
                    raise ClusterError(f"an engine did not start: {event.lost}")
        except BaseException:
            self.close()
            raise

    def _gpus(self) -> int:
        """Returns how many GPUs an engine takes. Raises ClusterError if Ray has too little room for all engines."""
        has, engines = self._ray.cluster_resources(), self.settings.engines
        gpus, cores = int(has.get("GPU", 0)), has.get("CPU", 0)
        if 0 < gpus < engines:
            raise ClusterError(
                f"cluster.engines={engines}: Ray has {gpus} GPUs, and an engine takes one; set cluster.engines={gpus} "
                "or add nodes"
            )
        if cores < engines * self._threads:
            raise ClusterError(
                f"cluster.engines={engines}: Ray has {cores:g} cores, and not room for all engines of {self._threads} "
                "cores each; ask for fewer, or add nodes"
            )
        return 1 if gpus else 0

    def _start(self, failed_starts: int = 0) -> None:
        """Start an engine in the background, and bring it up to date."""
        engine = PoolEngine(next(self._numbers), self._actor.remote(), failed_starts)
        self.engines[engine.number] = engine
        self.call(engine, "start", self.engine, self._threads)
        if self._weights:
            self.call(engine, "load_weights", *self._weights)

    # ---- calls ----

    @property
    def ready(self) -> list[PoolEngine]:
        """Engines that are up to date and have no call under way."""
        return [engine for engine in self.engines.values() if not engine.calls]

    def call(self, engine: PoolEngine, method: str, *args: Any) -> None:
        """Call a method of RolloutEngine. The answer comes as an event."""
        if not engine.calls:
            engine.asked = time.monotonic()
        engine.calls.append((method, getattr(engine.actor, method).remote(*args)))

    def call_all(self, method: str, *args: Any) -> dict[int, Any]:
        """Wait until an engine is ready, then call all ready engines. Returns the answers of engines that survived, in
        the order of their numbers."""
        answers: dict[int, Any] = {}
        while not answers:
            self.settle()
            waiting = {engine.number for engine in self.ready}
            for number in waiting:
                self.call(self.engines[number], method, *args)
            while waiting & self.engines.keys():
                event = self.next_event()
                if event is not None and event.engine.number in waiting:
                    waiting.discard(event.engine.number)
                    if not event.lost:
                        answers[event.engine.number] = event.answer
        return dict(sorted(answers.items()))

    def settle(self) -> None:
        """Wait until at least one engine is ready, and all engines that have started are ready."""
        while not self.ready or any(engine.pid and engine.calls for engine in self.engines.values()):
            self.next_event()

    def load_weights(self, parts: Sequence[WeightsPart], check: Sequence[str]) -> str:
        """Let all engines, also later ones, compute with these weights. Returns, in words, which tensors did not
        arrive.

        check: names of tensors. After loading, each engine checks that its copies of these tensors equal the sent ones.
        """
        self._weights = ()  # frees the old ones first
        self._version += 1
        self._weights = (self._version, list(check), *map(self._ray.put, parts))
        try:
            for engine in self.engines.values():  # also of those that start; it waits for those that have started
                self.call(engine, "load_weights", *self._weights)
            self.settle()
        except WeightsLost as error:
            return str(error)
        return ""

    def next_event(self) -> Event | None:
        """Wait for an engine's answer or loss. Returns None if no answer has come, or only the answer to a call that
        brings an engine up to date.
        """
        if self._stopped:
            raise ClusterError("the engines of the cluster were closed")
        if not self.engines:
            raise ClusterError(f"no engine is left, and none of {STARTS} new ones started: {self._last_loss}")
        awaited = {engine.calls[0][1]: engine for engine in self.engines.values() if engine.calls}
        if not awaited:
            return None
        answered, silent = self._ray.wait(list(awaited), num_returns=1, timeout=WAIT_S)
        for engine in map(awaited.__getitem__, silent):
            took = time.monotonic() - engine.asked
            late = took > (self.settings.silent_s if engine.pid else self.settings.start_s)
            # The trainer may have looked long ago: an answer that has come counts as in time.
            if late and not self._ray.wait([engine.calls[0][1]], timeout=0)[0]:
                setting = "silent_s" if engine.pid else "start_s"
                return self._lose(engine, f"it did not answer for {took:.0f} s (cluster.{setting})")
        return self._answered(awaited[answered[0]]) if answered else None

    def _answered(self, engine: PoolEngine) -> Event | None:
        """Take an engine's answer. Returns None if the call only brought the engine up to date."""
        (method, reference), start = engine.calls[0], time.thread_time()
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return self._lose(engine, one_line(error))
        engine.calls.popleft()
        engine.asked = time.monotonic()
        if method == "start":
            engine.pid = answer
        elif method == "load_weights" and answer:
            raise WeightsLost(f"engine {engine.number}: {answer}")
        elif method == "poll":
            self.receiving_s += time.thread_time() - start
        if method in UPDATES:
            return None
        engine.proven = True
        return Event(engine, method, answer)

    def _lose(self, engine: PoolEngine, why: str) -> Event:
        """Kill an engine that is dead or seems dead, and start another one in its place."""
        self._last_loss = why
        self._kill(engine)
        failed_starts = 0 if engine.proven else engine.failed_starts + 1
        if failed_starts < STARTS:
            self.restarts += 1
            self._start(failed_starts)
        return Event(engine, engine.calls[0][0], lost=why)

    def _kill(self, engine: PoolEngine) -> None:
        """Kill the engine's process, even if it is stopped or hangs: then Ray needs 5 s."""
        del self.engines[engine.number]
        self._ray.kill(engine.actor)

    def stop(self) -> None:
        """Stop the pool: `next_event` raises ClusterError from now on. So a thread that waits in `next_event` leaves
        the pool, and then `close` can be called."""
        self._stopped = True

    def close(self) -> None:
        """End all engines. No other thread may use the pool meanwhile."""
        for engine in list(self.engines.values()):
            self._kill(engine)
        if self._disconnects:
            self._ray.shutdown()


class WeightsLost(ClusterError):
    """An engine does not hold the weights that the trainer sent."""


def one_line(error: Exception) -> str:
    """Returns the message of one of Ray's errors, as one line: that of the error in the engine, if there was one."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return f"{type(cause).__name__}: {reason_of(cause)[:300]}"
    text = reason_of(error)
    return "its process died" if "died" in text else f"{type(error).__name__}: {text[:300]}"
