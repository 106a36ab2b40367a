"""A Cluster rolls out on many engines: it deals out requests, collects responses, and starts requests of lost engines
again.

A rollout's tokens depend only on seeds and weights. So a response is the same, bit for bit, whichever engine generates
it and however often it starts again.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from das.cluster.dispatcher import Dispatcher, QueuedRequest
from das.cluster.history_store import HistoryStore, finished_text
from das.cluster.pool import EnginePool, Event, PoolEngine
from das.cluster.rollout_engine import EngineRequest, requests_of
from das.drafter.saved import SavedText, read_history
from das.engine.rollouts.report import ClusterReport, Finished, RolloutReport, of_engines
from das.engine.rollouts.rollout import Rollout, RolloutRequest, measured_rollout, warn_of
from das.engine.settings import HISTORY, LEARNED
from das.general.arrays import load_arrays, pack_strings, save_arrays, unpack_strings
from das.general.errors import ClusterError
from das.general.files import write_bytes

POLL_S = 1.0  # an engine answers a poll within these seconds and a pass
LOSSES = 3  # engines that may die with a request before the request is blamed
STATE, KNOWN = "cluster.npz", "cluster_known.npz"  # the history of all engines, and which engine has which of it


@dataclass
class Running:
    """The state of a rollout under way."""

    dispatcher: Dispatcher
    requests: list[EngineRequest]
    asked: RolloutRequest
    began: float
    responses: dict[int, Finished] = field(default_factory=dict)  # by the request's index
    began_at: dict[int, float] = field(default_factory=dict)  # when each engine began, in seconds after `began`
    losses: Counter[int] = field(default_factory=Counter)  # number of engines that died with each request
    timeline: list[dict[str, Any]] = field(default_factory=list)
    rollout_s: float = 0.0

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
        self._keeps = engine.row.proposes and engine.row.history  # whether engines draft from each other's responses
        self.history = HistoryStore()
        self._readable = engine.drafter.get("name", "history") == "history"  # no other drafter's files are known
        self._slots = engine.max_num_seqs
        self._restarts = 0  # number of restarted engines up to the last rollout

    # ---- engines ----

    def close(self) -> None:
        """End all engines."""
        self.engines.close()

    # ---- rollouts ----

    def roll_out(self, request: RolloutRequest) -> Rollout:
        """Generate one response for each prompt.

        Raises ClusterError if no engine is left, or if LOSSES engines die with the same request.
        """
        running = self._run(request)
        if request.turn is not None:
            return self._measured(request, running, self.engines.call_all("end_turn"))
        reports = self.engines.call_all("end", request.next_history_tick)
        rollout = self._measured(request, running, reports)
        self._move_history(request.next_history_tick, rollout.report, request.evaluation)
        warn_of(rollout.report, request.step)
        return rollout

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """End a rollout of several turns: the drafters' windows move to `next_history_tick`. Returns a report of the
        time since the last turn."""
        report = of_engines(self.engines.call_all("end", next_history_tick))
        self._move_history(next_history_tick, report, evaluation)
        warn_of(report, step)
        return report

    def _move_history(self, history_tick: int, report: RolloutReport, evaluation: bool) -> None:
        if self._keeps and not evaluation and report.oldest_tick is not None:
            self.history.end_rollout(max(self.history.history_tick, history_tick), report.oldest_tick)

    def _run(self, request: RolloutRequest) -> Running:
        """Let the engines generate all responses of a rollout or turn."""
        running = Running(Dispatcher(predicted(request)), requests_of(request), request, time.perf_counter())
        self.engines.settle()
        first = self.engines.ready
        for engine in first:
            self._begin(running, engine)
        beginning = {engine.number for engine in first}
        while beginning & self.engines.engines.keys() - running.began_at.keys():
            self._take_event(running)
        while not running.dispatcher.done:
            self._hand_out(running)
            self._take_event(running)
        running.rollout_s = time.perf_counter() - running.began
        return running

    def _begin(self, running: Running, engine: PoolEngine) -> None:
        tick, asked = self.history.history_tick, running.asked
        self.engines.call(engine, "begin", asked.sampling_params, tick, asked.turn or 0, asked.evaluation)

    def _hand_out(self, running: Running) -> None:
        """Give requests to the engines that are free, and poll those that have some."""
        dispatcher = running.dispatcher
        for engine in self.engines.ready:
            if engine.number not in running.began_at:
                self._begin(running, engine)
                continue
            taken = [running.requests[index] for index in dispatcher.take(engine.number)]
            if not dispatcher.held(engine.number):
                continue
            lacking: Sequence[SavedText] = ()
            if not running.asked.evaluation:
                lacking = self.history.missing(engine.number, dict.fromkeys(request.problem for request in taken))
            self.engines.call(engine, "poll", taken, dispatcher.waiting, POLL_S, lacking)
            if taken:
                running.note(engine.number, "took")

    def _take_event(self, running: Running) -> None:
        event = self.engines.next_event()
        if event is None:
            return
        engine = event.engine.number
        if event.lost:
            self._lost(running, event)
        elif event.method == "begin":
            running.began_at[engine] = time.perf_counter() - running.began
            running.dispatcher.joined(engine, self._slots)
            running.note(engine, "joined")
        elif event.method == "poll":
            self._take_responses(running, engine, event.answer)

    def _take_responses(self, running: Running, engine: int, responses: Sequence[Finished]) -> None:
        began = running.began_at[engine]
        for response in responses:
            index = int(str(response.name))
            running.dispatcher.finished(engine, index)
            first_s, last_s = began + response.first_s, began + response.last_s
            running.responses[index] = replace(response, engine=engine, first_s=first_s, last_s=last_s)
            if self._keeps and not running.asked.evaluation:
                prompt = running.requests[index].prompt
                self.history.add(finished_text(response, self.history.history_tick, prompt), [engine])
        if responses:
            running.note(engine, "finished")

    def _lost(self, running: Running, event: Event) -> None:
        """Let other engines start the requests of a dead engine again. event: the engine's loss."""
        engine = event.engine.number
        self.history.forget(engine)
        running.note(engine, f"lost: {event.lost}")
        if engine not in running.dispatcher.live:
            return
        lost = running.dispatcher.lost(engine)
        running.losses.update(lost)
        blamed = [index for index in lost if running.losses[index] == LOSSES]
        if blamed:
            request = running.requests[blamed[0]]
            raise ClusterError(
                f"{LOSSES} engines died with request {request.index} of problem {request.problem}, the last one "
                f"because {event.lost}"
            )

    def _measured(self, request: RolloutRequest, running: Running, reports: Mapping[int, RolloutReport]) -> Rollout:
        """Returns the finished rollout with its measurements. reports: the reports of engines that are still alive."""
        finished = [running.responses[index] for index in range(len(running.requests))]
        handover_s, self.engines.receiving_s = self.engines.receiving_s, 0.0
        tokens = sum(len(response.tokens) for response in finished)
        restarts, self._restarts = self.engines.restarts - self._restarts, self.engines.restarts
        cluster = ClusterReport(
            engines=len(self.engines.engines),
            lost_requests=running.losses.total(),
            restarts=restarts,
            handover_us_per_token=1e6 * handover_s / tokens,
            history_bytes=self.history.bytes,
            by_engine=by_engine(running, reports),
        )
        report = replace(of_engines(reports), cluster=cluster, engines=running.timeline)
        return measured_rollout(request, finished, running.rollout_s, report)

    # ---- state ----

    def save_state(self, folder: Path) -> None:
        """Write what a resumed run needs to draft as this one would: the history, and what each engine's drafter has
        learned."""
        states = self.engines.call_all("saved_state")
        for of_engine, files in zip(_folders(folder, len(states)), states.values(), strict=True):
            of_engine.mkdir(exist_ok=True)
            for name, content in files.items():
                write_bytes(of_engine / name, content)
        places = {number: place for place, number in enumerate(states)}
        known = [[places[number] for number in numbers if number in places] for numbers in self.history.known()]
        self.history.saved().write(folder / STATE)
        counts = {"engines": np.array(len(states)), "known": pack_strings(known)}
        save_arrays(folder / KNOWN, {"kind": np.array(KNOWN), **counts})

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote. If there are more engines than before, several get the same state; if
        there are fewer, what the last ones learned is lost. A run with one engine in the process may have written it.
        """
        count, saved, known = 1, folder / HISTORY, None
        if (folder / STATE).exists():
            arrays = load_arrays(folder / KNOWN, KNOWN)
            count, saved, known = int(arrays["engines"]), folder / STATE, unpack_strings(arrays["known"])
        files = [[each / name for name in (HISTORY, LEARNED)] for each in _folders(folder, count)]
        states = [{path.name: path.read_bytes() for path in paths if path.exists()} for paths in files]
        self.engines.settle()
        engines = self.engines.ready
        for place, engine in enumerate(engines):
            self.engines.call(engine, "load_state", states[place % count])
        if self._keeps and (known is not None or self._readable):
            history = read_history(saved)
            known = [[0]] * len(history.texts) if known is None else known  # one engine has all
            having = [[each.number for i, each in enumerate(engines) if i % count in places] for places in known]
            self.history.restore(history, having)
        while any(engine.calls for engine in engines):
            event = self.engines.next_event()
            if event is not None and event.lost:
                raise ClusterError(f"an engine cannot continue from {folder}: {event.lost}")


def _folders(folder: Path, engines: int) -> list[Path]:
    """Returns the folders of this many engines' states in the folder of a checkpoint. The first engine's is that of an
    engine in the trainer's process, so that a resumed run may have one."""
    return [folder, *(folder / f"engine_{place}" for place in range(1, engines))]


def by_engine(running: Running, reports: Mapping[int, RolloutReport]) -> dict[str, dict[str, Any]]:
    """Returns, by the engine's number: its responses, tokens, tokens per pass, and the share of the rollout's time in
    which it was idle."""
    rows: dict[str, dict[str, Any]] = {}
    for engine in sorted(running.began_at):
        own = [response for response in running.responses.values() if response.engine == engine]
        tokens, passes = sum(len(each.tokens) for each in own), sum(each.passes for each in own)
        worked_s = max((each.last_s - running.began_at[engine] for each in own), default=0.0)
        rows[str(engine)] = {
            "responses": len(own),
            "tokens": tokens,
            "tokens_per_pass": tokens / passes if passes else None,
            "idle_share": 1 - worked_s / running.rollout_s,
            "gone": engine not in reports,
        }
    return rows


def predicted(request: RolloutRequest) -> list[QueuedRequest]:
    """Returns the requests for the dispatcher. Siblings are expected to have evenly spaced quantiles of their problem's
    lengths. Without a schedule all lengths are expected to be equal, which keeps the order of the requests.
    """
    siblings = Counter(request.problems)
    quantiles: dict[str, Iterator[float]] = {}
    for problem, count in siblings.items():
        if request.schedule is None:
            quantiles[problem] = iter([0.0] * count)
        else:
            shares = (np.arange(count)[::-1] + 0.5) / count
            quantiles[problem] = iter(request.schedule.lengths.quantiles(problem, shares).tolist())
    return [QueuedRequest(index, problem, next(quantiles[problem])) for index, problem in enumerate(request.problems)]
