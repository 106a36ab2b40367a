"""The dispatcher decides which engine rolls out which request, also after an engine has died.

Siblings (requests of the same problem) draft from each other while they decode, so problems stay whole where possible.
At the start of a rollout, problems are dealt to engines. Those with the longest expected response come first, and each
goes to the engine with the least predicted work, until every engine has as many requests as it decodes at once, or an
even share. The other requests wait in one queue, in the same order. An engine takes from the queue what fits, so an
engine gets less if it is slow or its responses turn out long.

This module uses no clock, process or network: the cluster and the simulator run the same class. Equal calls in equal
order give equal answers. No placement changes a token, because noise is keyed by request and position.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile


@dataclass(frozen=True)
class QueuedRequest:
    """One response to be generated.

    index: the request's place in the step's batch. predicted: expected length of the response in tokens. The longest
    expected response of a problem decides when the problem starts. So siblings may have different quantiles of the
    problem's lengths, or all the same high quantile.
    """

    index: int
    problem: str
    predicted: float


@dataclass
class _Engine:
    slots: int
    held: dict[int, None] = field(default_factory=dict)  # requests that it has started and not finished, in this order
    dealt: list[int] = field(default_factory=list)  # requests that are kept for this engine until its first `take`

    @property
    def load(self) -> int:
        """The number of requests that the engine has or that are kept for the engine."""
        return len(self.held) + len(self.dealt)

    @property
    def free(self) -> int:
        """The number of slots (places for requests that decode at once) for which the engine has no request."""
        return max(0, self.slots - self.load)


class Dispatcher:
    """Places the requests of one rollout on engines. Engines are known by numbers that the caller chooses.

    margin: the number of requests that an engine gets beyond its slots, so that no free slot waits for the next `take`.
    Near the end of the queue no engine gets a margin, because another could start the request at once.

    Each request is at any time delivered, held by one engine, or waiting.
    """

    def __init__(self, requests: Sequence[QueuedRequest], margin: int = 1) -> None:
        self.margin = margin
        self._undelivered = {request.index for request in requests}
        longest: dict[str, float] = {}
        first: dict[str, int] = {}
        for request in requests:
            longest[request.problem] = max(longest.get(request.problem, 0.0), request.predicted)
            first[request.problem] = min(first.get(request.problem, request.index), request.index)
        ordered = sorted(requests, key=lambda r: (-longest[r.problem], first[r.problem], r.index))
        self._requests = {request.index: request for request in ordered}  # in the order in which they should start
        self._rank = {index: rank for rank, index in enumerate(self._requests)}
        self._queue = deque(self._requests)
        self._lost: list[int] = []  # waiting requests of lost engines, sorted by rank
        self._engines: dict[int, _Engine] = {}
        self._begun = False  # whether an engine has called `take`, at which problems were dealt

    @property
    def waiting(self) -> int:
        """The number of requests that no engine has started, or whose engine was lost."""
        return len(self._lost) + len(self._queue) + sum(len(engine.dealt) for engine in self._engines.values())

    @property
    def done(self) -> bool:
        """True if every request has been delivered."""
        return not self._undelivered

    @property
    def live(self) -> tuple[int, ...]:
        """The engines that take part, in the order of their numbers."""
        return tuple(sorted(self._engines))

    def held(self, engine: int) -> tuple[int, ...]:
        """Returns the requests that this engine has started and not finished, in the order in which they were taken."""
        return tuple(self._engines[engine].held)

    def joined(self, engine: int, slots: int) -> None:
        """Let an engine take part from now on. slots: how many requests it decodes at once.

        Engines that join before any engine calls `take` are dealt problems. Later engines take from the queue.
        """
        self._engines[engine] = _Engine(slots)

    def take(self, engine: int) -> list[int]:
        """Returns the requests that this engine shall start now, in this order; possibly none.

        They fill the engine's free slots and the margin. Lost requests come first, then the problems dealt to this
        engine, then the common queue.
        """
        taker = self._engines[engine]
        if not self._begun:
            self._begun = True
            self._deal()
        own, taker.dealt = taker.dealt, []
        self._queue.extendleft(reversed(own))  # lost requests took their slots, so any engine may start these
        count = max(len(own), self._share(taker))
        taken, self._lost = self._lost[:count], self._lost[count:]
        while len(taken) < count and self._queue:
            taken.append(self._queue.popleft())
        taker.held.update(dict.fromkeys(taken))
        return taken

    def finished(self, engine: int, request: int) -> None:
        """Note that an engine delivers a response."""
        del self._engines[engine].held[request]
        self._undelivered.remove(request)

    def lost(self, engine: int) -> list[int]:
        """Note that an engine is gone. Returns the requests that it held, which go to the front of the queue."""
        gone = self._engines[engine]
        self._queue.extendleft(reversed(gone.dealt))
        del self._engines[engine]
        self._lost = sorted([*self._lost, *gone.held], key=self._rank.__getitem__)
        return list(gone.held)

    def _deal(self) -> None:
        """Deal problems from the queue to the engines with the least predicted work.

        An engine gets at most as many requests as it has slots, and at most an even share of all requests. If a problem
        does not fit, the rest of its requests go to the next engine.
        """
        share = math.ceil(len(self._queue) / len(self._engines))
        heap = [(0.0, number) for number in sorted(self._engines)]  # predicted tokens of each engine with room
        while self._queue and heap:
            problem = self._next_problem()
            work, number = heap[0]
            engine = self._engines[number]
            room = min(engine.slots, share) - len(engine.dealt)
            for request in problem[:room]:
                engine.dealt.append(self._queue.popleft())
                work += request.predicted
            if room > len(problem):
                heapq.heapreplace(heap, (work, number))
            else:
                heapq.heappop(heap)

    def _next_problem(self) -> list[QueuedRequest]:
        """Returns the requests at the front of the queue that belong to the same problem."""
        requests = map(self._requests.__getitem__, self._queue)
        problem = self._requests[self._queue[0]].problem
        return list(takewhile(lambda request: request.problem == problem, requests))

    def _share(self, taker: _Engine) -> int:
        """Returns the number of waiting requests that this engine starts now.

        If more requests wait than slots are free, the engine fills its slots, and its margin if there are enough
        requests for all margins. If fewer requests wait, the engines with free slots share these requests so that the
        fullest engine has as few as possible: the first engine that asks must not take what several could decode.
        """
        waiting = len(self._lost) + len(self._queue)
        if not waiting:
            return 0
        engines = self._engines.values()
        behind = waiting - sum(engine.free for engine in engines)  # requests without a slot
        if behind > 0:
            return max(0, taker.slots + min(self.margin, behind // len(engines)) - taker.load)
        loads = sorted(engine.load for engine in engines if engine.free)
        total = waiting
        for count, load in enumerate(loads, 1):
            total += load
            if count == len(loads) or total <= count * loads[count]:
                return min(taker.free, max(0, -(-total // count) - taker.load))
        return 0
