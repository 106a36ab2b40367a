"""A RolloutEngine in a process of its own, called from this one: it rolls out while the policy trains."""

import multiprocessing
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from das.cluster.messages import Response, WeightsPart, requests_of, weights_checksum
from das.engine.build import EngineSettings
from das.engine.rollouts.reports import of_engine
from das.engine.rollouts.rollout import Rollout, RolloutRequest, measured_rollout, warn_of
from das.errors import EngineDied
from das.process import die_with_parent

END_S = 5  # seconds that the process gets to end by itself
TURN_S = 1.0  # seconds after which the engine answers at the latest: a rollout that is not wanted any more ends then


class EngineProcess:
    """One engine in a child process. It does for a trainer what a Cluster does, without Ray. One call at a time."""

    def __init__(self, settings: EngineSettings, threads: int):
        """Start the process and build its engine. Raises what build_engine raises.

        threads: of the engine. The thread that calls this must live as long as the engine.
        """
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, settings, threads), name="engine", daemon=True)
        self._process.start()
        theirs.close()
        self._weights = 0  # version
        self._one_call = threading.Lock()
        self._closing = False
        self._answered = False  # yet
        self._receive()
        self._answered = True

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

    def collective_rpc(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        """vllm.LLM.collective_rpc."""
        found: list[Any] = self.call("collective_rpc", method, args)
        return found

    def load_weights(self, parts: Sequence[WeightsPart], check: Sequence[str]) -> str:
        """Compute with these weights from now on, and say what did not arrive. check: as in RolloutEngine."""
        self._weights += 1
        problem: str = self.call("load_weights", self._weights, weights_checksum(parts), parts, check)
        return problem

    def probe(self, tokens: Sequence[int]) -> np.ndarray:
        """RolloutEngine.probe."""
        logprobs: np.ndarray = self.call("probe", tokens)
        return logprobs

    def roll_out(self, request: RolloutRequest) -> tuple[list[Response], Rollout]:
        """Generate one response for each prompt; in the order of the prompts. As roll_out."""
        self.call("begin", request.sampling_params, 0)
        requests = requests_of(request)
        new = [requests[index] for index in request.order()]
        found: dict[int, Response] = {}
        acknowledged: list[int] = []
        start = time.perf_counter()
        while len(found) < len(requests):
            turn = self.call("turn", new, acknowledged, 0, TURN_S)
            found |= {response.index: response for response in turn.finished}
            new, acknowledged = [], [response.index for response in turn.finished]
        rollout_s = time.perf_counter() - start
        report = self.call("end", request.next_history_tick, not request.evaluation)
        warn_of(report, request.step)
        responses = [found[index] for index in range(len(requests))]
        rollout = measured_rollout(
            request,
            [response.tokens.tolist() for response in responses],
            [response.finish_reason for response in responses],
            [response.cost for response in responses],
            rollout_s,
            of_engine(report),
        )
        return responses, rollout

    def close(self) -> None:
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


def _serve(pipe: Connection, settings: EngineSettings, threads: int) -> None:
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
