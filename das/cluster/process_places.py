"""A place for one engine in a child process of the trainer, without Ray."""

import pickle
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from das.cluster.actor import EngineHost
from das.cluster.places import Places
from das.errors import EngineDied
from das.process import die_with_parent, spawned

END_S = 30  # seconds that a process gets to end by itself


class EngineProcess:
    """A child process with an EngineHost. It answers one call after the other until the pipe is closed.

    The thread that starts it must live as long as the process.
    """

    def __init__(self) -> None:
        self.process, self.pipe = spawned(_serve, name="engine", start="spawn")  # this process has computed: no fork
        self._answered = False  # whether the process has ever answered

    def send(self, call: tuple[str, tuple[Any, ...]]) -> None:
        """Send a method's name and its arguments. Raises EngineDied if the process has died."""
        try:
            self.pipe.send_bytes(pickle.dumps(call))
        except (BrokenPipeError, ConnectionResetError):
            raise self._gone() from None

    def receive(self) -> Any:
        """Wait for the answer. Raises the method's error, or EngineDied if the process has died."""
        try:
            succeeded, value = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):  # OSError: it died while it answered
            raise self._gone() from None
        self._answered = True
        if not succeeded:
            raise value
        return value

    def _gone(self) -> EngineDied:
        self.process.join(END_S)
        code, why = self.process.exitcode, "what it printed says why"
        if code == -signal.SIGKILL:
            why = "out of memory?"
        elif code == 1 and not self._answered:  # a new process imports the script first
            why = 'does the script lack `if __name__ == "__main__":`?'
        return EngineDied(f"the engine's process has died (exit code {code}; {why})")

    def end(self) -> None:
        """Close the pipe, so that the process ends after its present call. Kill it if it does not end."""
        self.pipe.close()
        self.process.join(END_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()


class ProcessPlaces(Places):
    """One place, in a child process of this one. The engine's death ends the pool.

    `answer` raises the errors of the engine's methods unchanged.
    """

    lasting = True

    def open(self, number: int) -> None:
        """Do nothing: a child process needs no reserved place."""

    def close(self, number: int) -> None:
        """Do nothing: no place was reserved."""

    def require_room(self, engines: int) -> None:
        """Do nothing: there is always room for a child process."""

    def start_actor(self, number: int) -> EngineProcess:
        """See Places."""
        return EngineProcess()

    def call(self, actor: EngineProcess, method: str, *args: Any) -> EngineProcess:
        """See Places. The process itself is the reference to the answer, because it has one call at a time."""
        actor.send((method, args))
        return actor

    def answered(self, references: Sequence[EngineProcess], timeout_s: float) -> list[EngineProcess]:
        """See Places."""
        ready = wait([reference.pipe for reference in references], timeout_s)
        return [reference for reference in references if reference.pipe in ready]

    def answer(self, reference: EngineProcess) -> Any:
        """See Places. Raises EngineDied in place of EngineLost."""
        return reference.receive()

    def kill(self, actor: EngineProcess, pid: int, node: str) -> None:
        """See Places."""
        actor.end()

    def disconnect(self) -> None:
        """Do nothing: the process has ended."""


def _serve(pipe: Connection) -> None:
    """Run an engine in this process: answer the calls that come through the pipe until the trainer closes it."""
    die_with_parent()
    host = EngineHost()
    with suppress(EOFError, ConnectionError):  # the trainer has closed the pipe
        while True:
            method, args = pickle.loads(pipe.recv_bytes())
            try:
                answer = True, getattr(host, method)(*args)
            except Exception as error:
                answer = False, error
            pipe.send_bytes(pickle.dumps(answer))
    host.abort()
