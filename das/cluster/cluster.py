"""A Cluster rolls out on many engines: it deals out requests, collects responses, and starts requests of lost engines
again.

A rollout's tokens depend only on seeds and weights. So a response is the same, bit for bit, whichever engine generates
it and however often it starts again.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from das.cluster.dispatcher import Dispatcher
from das.cluster.history_store import HistoryStore
from das.cluster.messages import ClusterError, EngineRequest, Poll, Response, predicted, requests_of
from das.cluster.paces import Paces
from das.cluster.pool import EnginePool, Event, PoolEngine
from das.drafter import window_of
from das.drafter.constants import PROMPT_CONTEXT
from das.drafter.distributions import Distributions
from das.drafter.saved import SavedText, read_history
from das.engine.rollouts.report import ClusterReport, RolloutReport, of_engines
from das.engine.rollouts.rollout import Rollout, RolloutRequest, measured_rollout, warn_of

POLL_S = 1.0  # an engine answers a poll within these seconds; requests of a dead engine may wait so long
LOSSES = 3  # engines that may die with a request before the request is blamed
STATE = "cluster.npz"


@dataclass
class Running:
    """The state of a rollout under way."""

    dispatcher: Dispatcher
    requests: list[EngineRequest]
    turn: int
    params: Any
    began: float
    responses: dict[int, Response] = field(default_factory=dict)
    by: dict[int, int] = field(default_factory=dict)  # the engine that delivered each response
    began_at: dict[int, float] = field(default_factory=dict)  # when each engine began, in seconds after `began`
    arrived: dict[int, list[int]] = field(default_factory=dict)  # responses to acknowledge to each engine
    losses: Counter[int] = field(default_factory=Counter)  # number of engines that died with each request
    paces: Paces = field(default_factory=Paces)
    given_up: set[int] = field(default_factory=set)  # slow engines, whose requests others have started again
    slow: dict[int, float] = field(default_factory=dict)  # pace (see Paces) of each given-up engine
    replayed: set[int] = field(default_factory=set)  # requests that had to start again
    timeline: list[dict[str, Any]] = field(default_factory=list)
    lost_requests: int = 0
    rollout_s: float = 0.0

    @property
    def ordered(self) -> list[Response]:
        """The responses in the order of the prompts."""
        return [self.responses[index] for index in range(len(self.requests))]

    def note(self, engine: int, event: str) -> None:
        """Add an event of an engine to the rollout's timeline."""
        live = len(self.dispatcher.held(engine)) if engine in self.dispatcher.live else 0
        self.timeline.append(
            {"engine": engine, "time_s": time.perf_counter() - self.began, "live": live, "event": event}
        )


class Cluster:
    """The engines of one trainer, and the history of their rollouts."""

    def __init__(self, engines: EnginePool) -> None:
        """engines: the pool to roll out on. `close` ends its engines."""
        self.engines = engines
        engine = engines.engine
        own_history = engine.row.proposes and engine.row.history
        self.history = HistoryStore(window_of(engine.drafter) if own_history else 0)
        self._slots = engine.max_num_seqs
        self._evaluating = False
        self._restarts = 0  # number of restarted engines up to the last rollout
        self._size = engines.settings.engines
        self._leaving: set[int] = set()  # numbers of engines that get no more requests
        self._paces: dict[int, float] = {}  # pace (see Paces) of engines that were slow in the last rollout

    # ---- engines ----

    def resize(self, engines: int) -> None:
        """Use this number of engines from now on. New engines take part as soon as they have started. Surplus engines
        finish their requests first.
        """
        self._size = engines
        self._leaving = {engine.number for engine in self.engines.resize(engines)}

    def close(self) -> None:
        """End all engines."""
        self.engines.close()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Inside the `with` block, each engine drafts with a new drafter that has learned nothing. At the end of the
        block the new drafter is dropped."""
        self._evaluating = True
        self.engines.evaluate(True)
        try:
            yield
        finally:
            self._evaluating = False
            self.engines.evaluate(False)

    def probe(self, tokens: Sequence[int]) -> np.ndarray:
        """Returns the engines' log-probs [T - 1] of these tokens [T] after the first one. Raises ClusterError if the
        log-probs of two engines differ in any bit."""
        answers: dict[int, np.ndarray] = self.engines.call_all("probe", list(tokens))
        (number, first), *others = answers.items()
        for other, answer in others:
            if answer.tobytes() != first.tobytes():
                raise ClusterError(f"engines {number} and {other} compute something else with equal weights")
        return first

    # ---- rollouts ----

    def roll_out(self, request: RolloutRequest) -> tuple[list[Response], Rollout]:
        """Generate one response for each prompt. Returns the responses, in the order of the prompts, and the rollout.

        Raises ClusterError if no engine is left, if LOSSES engines die with the same request, or if two engines answer
        one request differently.
        """
        running = self._run(request, turn=0)
        reports = self.engines.call_all("end", request.next_history_tick, not request.evaluation)
        rollout = self._measured(request, running, reports)
        self._move_history(request.next_history_tick)
        warn_of(rollout.report, request.step)
        return running.ordered, rollout

    def roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Response], Rollout]:
        """Generate the responses of one turn of a rollout that has several turns. `end_turns` ends the rollout."""
        running = self._run(request, turn)
        rollout = self._measured(request, running, self.engines.call_all("end_turn"))
        return running.ordered, rollout

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """End a rollout of several turns: the drafters' windows move to `next_history_tick`. Returns a report of the
        time since the last turn."""
        reports = self.engines.call_all("end", next_history_tick, not evaluation)
        report = self._reported(reports)
        self._move_history(next_history_tick)
        warn_of(report, step)
        return report

    def _reported(self, reports: Mapping[int, RolloutReport]) -> RolloutReport:
        """Merge the reports of all engines into one. reports: by the engines' numbers."""
        return of_engines(reports)

    def _move_history(self, history_tick: int) -> None:
        if not self._evaluating:
            self.history.end_step(max(self.history.history_tick, history_tick))

    def _run(self, request: RolloutRequest, turn: int) -> Running:
        """Let the engines generate all responses of a rollout or turn."""
        dispatcher = Dispatcher(predicted(request))
        running = Running(dispatcher, requests_of(request), turn, request.sampling_params, time.perf_counter())
        self.engines.settle()
        if self._leaving - self.engines.engines.keys():
            self.resize(self._size)  # if an engine that should leave has died, the engine that replaced it leaves
        for engine in self.engines.ready:
            if engine.number in self._leaving:
                self._dismiss(running, engine)
        first = self.engines.ready
        for engine in first:
            self._begin(running, engine)
        beginning = {engine.number for engine in first}
        while beginning & self.engines.engines.keys() - running.began_at.keys():
            self._take_event(running)
        while not dispatcher.done:
            self._give_up_slow(running)
            self._hand_out(running)
            self._take_event(running)
        running.rollout_s = time.perf_counter() - running.began
        known = {engine: running.paces.pace(engine) for engine in self._paces if engine in running.began_at}
        self._paces = {**known, **running.slow}
        return running

    def _begin(self, running: Running, engine: PoolEngine) -> None:
        self.engines.call(engine, "begin", running.params, self.history.history_tick, running.turn)

    def _hand_out(self, running: Running) -> None:
        """Give requests to the engines that are free, and poll them."""
        dispatcher = running.dispatcher
        for engine in self.engines.ready:
            if engine.number in self._leaving and engine.number in dispatcher.live:
                dispatcher.draining(engine.number)
            if engine.number not in running.began_at:
                self._begin(running, engine)
                continue
            if engine.number in running.given_up:
                if engine.live:  # a response that it finishes first still counts
                    arrived = running.arrived.pop(engine.number, [])
                    self.engines.call(engine, "poll", [], arrived, dispatcher.waiting, POLL_S, ())
                    continue
                if engine.number in self._leaving:
                    self._dismiss(running, engine)
                    continue
                if not dispatcher.waiting or any(not dispatcher.held(other) for other in dispatcher.live):
                    continue
                self._take_back(running, engine.number)
            if not dispatcher.held(engine.number):
                running.paces.took(engine.number, time.perf_counter())
            taken = [running.requests[index] for index in dispatcher.take(engine.number)]
            if not taken and not dispatcher.held(engine.number):
                if engine.number in self._leaving:
                    self._dismiss(running, engine)
                continue
            lacking: Sequence[SavedText] = ()
            if not self._evaluating:
                lacking = self.history.missing(engine.number, dict.fromkeys(request.problem for request in taken))
            arrived = running.arrived.pop(engine.number, [])
            self.engines.call(engine, "poll", taken, arrived, dispatcher.waiting, POLL_S, lacking)
            if taken:
                running.note(engine.number, "took")

    def _give_up_slow(self, running: Running) -> None:
        """Let idle engines start the requests of slow engines again. Whichever finishes a request first delivers it."""
        dispatcher = running.dispatcher
        if dispatcher.waiting:
            return
        idle = [engine for engine in dispatcher.live if not dispatcher.held(engine) and engine not in self._leaving]
        holding = [engine for engine in dispatcher.live if dispatcher.held(engine)]
        now = time.perf_counter()
        for engine in running.paces.slow(holding, idle, now)[: len(idle)]:
            lost = dispatcher.lost(engine)
            running.given_up.add(engine)
            running.slow[engine] = running.paces.pace(engine, running.paces.silent_s(engine, now))
            running.replayed.update(lost)
            running.note(engine, f"slow: {len(lost)} requests start again elsewhere")

    def _take_back(self, running: Running, engine: int) -> None:
        """Let a given-up slow engine take requests again, because requests wait and no other engine is idle."""
        running.given_up.discard(engine)
        running.dispatcher.joined(engine, self._slots)
        running.note(engine, "joined")

    def _dismiss(self, running: Running, engine: PoolEngine) -> None:
        """End an engine that is to leave and has no requests."""
        self._leaving.discard(engine.number)
        if engine.number in running.dispatcher.live:
            running.dispatcher.lost(engine.number)
        running.note(engine.number, "left")
        self.history.forget(engine.number)
        self.engines.dismiss(engine)

    def _take_event(self, running: Running) -> None:
        event = self.engines.next_event()
        if event is None:
            return
        engine = event.engine.number
        if event.lost:
            self._lost(running, event)
        elif event.method == "begin":
            running.began_at[engine] = time.perf_counter() - running.began
            running.dispatcher.joined(engine, self._slots, self._paces.get(engine, 1.0))
            running.paces.began(engine, event.answer, time.perf_counter())
            running.note(engine, "joined")
        elif event.method == "poll":
            self._take_responses(running, engine, event.answer)

    def _take_responses(self, running: Running, engine: int, poll: Poll) -> None:
        running.paces.heard(engine, poll.passes, time.perf_counter())
        for response in poll.finished:
            if response.weights != self.engines.version:
                raise ClusterError(
                    f"engine {engine} answered with weights {response.weights}, and {self.engines.version} are current"
                )
            request = running.requests[response.index]
            running.arrived.setdefault(engine, []).append(response.index)
            if not running.dispatcher.finished(engine, response.index):
                if not response.equals(running.responses[response.index]):
                    raise ClusterError(
                        f"engines {running.by[response.index]} and {engine} answered request {response.index} of "
                        f"problem {request.problem} differently: a rollout must not depend on its engine"
                    )
                continue
            running.responses[response.index], running.by[response.index] = response, engine
            if not self._evaluating:
                self.history.add(self._trajectory(request, response), engine)
        if poll.finished:
            running.note(engine, "finished")

    def _trajectory(self, request: EngineRequest, response: Response) -> SavedText:
        context = request.prompt[-PROMPT_CONTEXT:]
        tokens = np.concatenate([np.asarray(context, np.int32), response.tokens])
        text = response.cost.distributions
        remembered = None if text is None else Distributions.from_text(text, len(response.tokens))
        return SavedText(request.problem, self.history.history_tick, len(context), tokens, remembered=remembered)

    def _lost(self, running: Running, event: Event) -> None:
        """Let other engines start the requests of a dead engine again. event: the engine's loss."""
        engine = event.engine.number
        if engine in self._leaving:
            self.resize(self._size)  # if the engine was to leave, the one that replaces it leaves
        self.history.forget(engine)
        running.arrived.pop(engine, None)
        running.note(engine, f"lost: {event.lost}")
        if engine not in running.dispatcher.live:
            return
        lost = running.dispatcher.lost(engine)
        running.lost_requests += len(lost)
        running.losses.update(lost)
        running.replayed.update(lost)
        blamed = [index for index in lost if running.losses[index] == LOSSES]
        if blamed:
            request = running.requests[blamed[0]]
            raise ClusterError(
                f"{LOSSES} engines died with request {request.index} of problem {request.problem}, the last one "
                f"because {event.lost}"
            )

    def _measured(self, request: RolloutRequest, running: Running, reports: Mapping[int, RolloutReport]) -> Rollout:
        """Returns the finished rollout with its measurements. reports: the reports of engines that are still alive."""
        ordered = running.ordered
        costs = []
        for response in ordered:
            engine = running.by[response.index]
            offset = running.began_at[engine]
            cost = response.cost
            costs.append(replace(cost, first_s=cost.first_s + offset, last_s=cost.last_s + offset, engine=engine))
        start = time.thread_time()
        responses = [response.tokens.tolist() for response in ordered]
        handover_s = time.thread_time() - start + self.engines.receiving_s
        self.engines.receiving_s = 0.0
        tokens = sum(map(len, responses))
        restarts, self._restarts = self.engines.restarts - self._restarts, self.engines.restarts
        cluster = ClusterReport(
            engines=len(self.engines.engines),
            lost_requests=running.lost_requests,
            replayed_requests=len(running.replayed),
            restarts=restarts,
            handover_us_per_token=1e6 * handover_s / tokens,
            history_bytes=self.history.bytes,
            by_engine=by_engine(running, reports),
        )
        report = replace(self._reported(reports), cluster=cluster, engines=running.timeline)
        reasons = [response.finish_reason for response in ordered]
        return measured_rollout(request, responses, reasons, costs, running.rollout_s, report)

    # ---- state ----

    def save_history(self, path: Path) -> None:
        """Write the history of all engines as a file for the option `drafter.warm`. What the engines' drafters have
        learned is not in it."""
        if self.history.window:
            self.history.saved().write(path)

    def save_state(self, folder: Path) -> None:
        """Write the history that a resumed run drafts from. The resumed run may have another number of engines."""
        self.history.saved().write(folder / STATE)

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""
        self.history.restore(read_history(folder / STATE))


def by_engine(running: Running, reports: Mapping[int, RolloutReport]) -> dict[str, dict[str, Any]]:
    """Returns, by the engine's number: its responses, tokens, tokens per pass, and the share of the rollout's time in
    which it was idle."""
    rows: dict[str, dict[str, Any]] = {}
    for engine in sorted(running.began_at):
        own = [running.responses[index] for index, deliverer in running.by.items() if deliverer == engine]
        tokens, passes = sum(len(each.tokens) for each in own), sum(each.cost.passes for each in own)
        last_s = max((each.cost.last_s for each in own), default=0.0)
        rows[str(engine)] = {
            "responses": len(own),
            "tokens": tokens,
            "tokens_per_pass": tokens / passes if passes else None,
            "idle_share": 1 - last_s / running.rollout_s,
            "gone": engine not in reports,
        }
    return rows
