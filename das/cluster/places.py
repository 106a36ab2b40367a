"""Places where the engines of a pool run: on Ray (ray_places.py), or in child processes (process_places.py)."""

from collections.abc import Sequence
from typing import Any

from das.cluster.messages import WeightsPart


class EngineLost(RuntimeError):
    """An engine's process has died. Another engine can start at its place. The message says why, in one line."""


class Places:
    """Places, known by numbers, and the actors at them: processes with an EngineHost (das/cluster/actor.py).

    Methods raise ClusterError or EngineDied, in one line, if the pool cannot go on.
    """

    gpus = 0  # for engines; 0: engines run on CPUs
    lasting = False  # whether no engine ever starts in place of a dead one

    def open(self, number: int) -> None:
        """Ask for one more place."""

    def close(self, number: int) -> None:
        """Give a place back."""

    def require_room(self, engines: int) -> None:
        """Wait until there is room for so many engines. Raises ClusterError if there is not enough."""

    def start_actor(self, number: int) -> Any:
        """Start an actor at a place, in the background."""
        raise NotImplementedError

    def call(self, actor: Any, method: str, *args: Any) -> Any:
        """Call a method of the actor's EngineHost. Returns a reference to the answer."""
        raise NotImplementedError

    def answered(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait for an answer. Returns references whose answers are there; none after `timeout_s`."""
        raise NotImplementedError

    def answer(self, reference: Any) -> Any:
        """The answer. Raises EngineLost if the actor died or failed."""
        raise NotImplementedError

    def shared(self, part: WeightsPart) -> Any:
        """An argument that stands for these weights in the calls of several actors."""
        return part

    def address(self) -> str:
        """This process's address, for actors that receive a broadcast from it."""
        return "127.0.0.1"

    def kill(self, actor: Any, pid: int, node: str) -> None:
        """End an actor, even if it hangs. pid, node: of its process; 0 and empty if they are not known."""
        raise NotImplementedError

    def broken(self) -> str:
        """Why no actor can start any more; empty if actors can start."""
        return ""

    def disconnect(self) -> None:
        """End what the places needed. All actors have ended."""
