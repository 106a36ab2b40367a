"""A RolloutEngine in a process of its own, called from this one: it rolls out while the policy trains."""

import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from das.cluster.messages import Response, WeightsPart, requests_of, weights_checksum
from das.engine.build import EngineSettings
from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest, measured_rollout, warn_of
from das.errors import EngineDied
from das.process import die_with_parent, spawned

END_S = 5  # seconds that the process gets to end by itself
POLL_S = 1.0  # seconds after which the engine answers at the latest: a rollout that is not wanted any more ends then


class EngineProcess:
    """One engine in a child process, without Ray (das.trl.engines.engines.OtherEngines). One call at a time.

    Its drafter's state is the engine's, as on an engine in this process.
    """

    for_all_ranks = False

    def __init__(self, settings: EngineSettings, threads: int):
        """Start the process and build its engine. Raises what build_engine raises.

        threads: of the engine. The thread that calls this must live as long as the engine.
        """
        self._process, self._pipe = spawned(_serve, settings, threads, name="engine")
        self._weights = 0  # version
        self._one_call = threading.Lock()
        self._closing = False
        self._answered = False  # yet
        self._receive()
        self._answered = True
        self.dtype: torch.dtype = getattr(torch, self.call("dtype"))

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of RolloutEngine. Raises what it raises, EngineDied if the process died or is being ended."""
        with self._one_call:
            if self._closing:
                raise EngineDied("the engine's process was ended")
            try:
                self._pipe.send_bytes(pickle.dumps((method, args)))
            except (BrokenPipeError, ConnectionResetError):
                raise self._gone() from None
            return self._receive()

    def _receive(self) -> Any:
        try:
            succeeded, value = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):  # OSError: it died while it answered
            raise self._gone() from None
        if not succeeded:
            raise value
        return value

    def _gone(self) -> EngineDied:
        self._process.join(END_S)
        code, why = self._process.exitcode, "what it printed says why"
        if code == -signal.SIGKILL:
            why = "out of memory?"
        elif code == 1 and not self._answered:  # a process that is started anew imports the script first
            why = 'does the script lack `if __name__ == "__main__":`?'
        return EngineDied(f"the engine's process has died (exit code {code}; {why})")

    def _rpc(self, method: str, *args: Any) -> Any:
        """What the worker's method returns."""
        (found,) = self.call("collective_rpc", method, args)
        return found

    def load_weights(self, parts: Sequence[WeightsPart], check: Sequence[str]) -> str:
        """As OtherEngines says."""
        self._weights += 1
        problem: str = self.call("load_weights", self._weights, weights_checksum(parts), parts, check)
        return problem

    def probe(self, tokens: Sequence[int]) -> np.ndarray:
        """As OtherEngines says."""
        logprobs: np.ndarray = self.call("probe", tokens)
        return logprobs

    def roll_out(self, request: RolloutRequest) -> tuple[list[Response], Rollout]:
        """As Engines says."""
        responses, rollout_s = self._generate(request, turn=0)
        report = self.call("end", request.next_history_tick, not request.evaluation)
        warn_of(report, request.step)
        return responses, _measured(request, responses, rollout_s, report)

    def roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Response], Rollout]:
        """As Engines says."""
        responses, rollout_s = self._generate(request, turn)
        return responses, _measured(request, responses, rollout_s, self.call("end_turn"))

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """As Engines says."""
        report: RolloutReport = self.call("end", next_history_tick, not evaluation)
        warn_of(report, step)
        return report

    def _generate(self, request: RolloutRequest, turn: int) -> tuple[list[Response], float]:
        """The responses, in the order of the prompts, and the seconds they took."""
        self.call("begin", request.sampling_params, 0, turn)
        requests = requests_of(request)
        new = [requests[index] for index in request.order()]
        found: dict[int, Response] = {}
        acknowledged: list[int] = []
        start = time.perf_counter()
        while len(found) < len(requests):
            poll = self.call("poll", new, acknowledged, 0, POLL_S)
            found |= {response.index: response for response in poll.finished}
            new, acknowledged = [], [response.index for response in poll.finished]
        return [found[index] for index in range(len(requests))], time.perf_counter() - start

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """As Engines says."""
        self._rpc("das_begin_evaluation")
        try:
            yield
        finally:
            self._rpc("das_end_evaluation")

    def save_history(self, path: Path) -> None:
        """As Engines says."""
        self._rpc("das_save_history", str(path))

    def save_state(self, folder: Path) -> None:
        """As Engines says."""
        self._rpc("das_save_state", str(folder))

    def load_state(self, folder: Path) -> None:
        """As Engines says."""
        self._rpc("das_load_state", str(folder))

    def stop(self) -> None:
        """End the process between two calls. A rollout that runs in another thread raises EngineDied."""
        self._closing = True
        between_calls = self._one_call.acquire(timeout=END_S)
        self._pipe.close()
        self._process.join(END_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        if between_calls:
            self._one_call.release()

    def close(self) -> None:
        """As Engines says. It may come after `stop`."""
        self.stop()


def _measured(
    request: RolloutRequest, responses: Sequence[Response], rollout_s: float, report: RolloutReport
) -> Rollout:
    return measured_rollout(
        request,
        [response.tokens.tolist() for response in responses],
        [response.finish_reason for response in responses],
        [response.cost for response in responses],
        rollout_s,
        report,
    )


def _serve(settings: EngineSettings, threads: int, pipe: Connection) -> None:
    """Body of the engine's process: it answers one call after the other until the pipe is closed."""
    die_with_parent()
    from das.cluster.rollout_engine import RolloutEngine

    engine: Any = None

    def build() -> None:
        nonlocal engine
        engine = RolloutEngine(settings, threads=threads)

    _answer(pipe, build)
    while engine is not None:
        try:
            method, args = pickle.loads(pipe.recv_bytes())
        except EOFError:
            engine.abort()
            return
        _answer(pipe, getattr(engine, method), *args)


def _answer(pipe: Connection, function: Callable[..., Any], *args: Any) -> None:
    try:
        answer = True, function(*args)
    except Exception as error:
        answer = False, error
    pipe.send_bytes(pickle.dumps(answer))
