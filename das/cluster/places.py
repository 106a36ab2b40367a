"""Places where the engines of a pool run: on Ray (ray_places.py), or in child processes (process_places.py)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from das.cluster.messages import WeightsPart


class EngineLost(RuntimeError):
    """An engine's process has died. Another engine can start in its place. A one-line message says why."""


class Places(ABC):
    """Places where engines run, known by numbers. Each runs an actor: a process with an EngineHost
    (das/cluster/actor.py).

    Methods raise ClusterError or EngineDied with a one-line message if the pool cannot continue.
    """

    gpus = 0  # number of GPUs for engines; 0: engines run on CPUs
    lasting = False  # True: a dead engine is never replaced by another

    @abstractmethod
    def open(self, number: int) -> None:
        """Reserve a place, which is room for one engine, under this number. `require_room` waits until it is there."""

    @abstractmethod
    def close(self, number: int) -> None:
        """Give back the place with this number, which `open` reserved."""

    @abstractmethod
    def require_room(self, engines: int) -> None:
        """Wait until there is room for this number of engines. Raises ClusterError if there is not enough."""

    @abstractmethod
    def start_actor(self, number: int) -> Any:
        """Start an actor at a place, in the background."""

    @abstractmethod
    def call(self, actor: Any, method: str, *args: Any) -> Any:
        """Call a method of the actor's EngineHost. Returns a reference to the answer."""

    @abstractmethod
    def answered(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait until at least one answer has come, for `timeout_s` seconds at most. Returns the references whose
        answers have come; possibly none."""

    @abstractmethod
    def answer(self, reference: Any) -> Any:
        """Returns the answer to a call. Raises EngineLost if the actor died or failed."""

    def shared(self, part: WeightsPart) -> Any:
        """Returns an object that stands for these weights in calls, so that several actors can get them cheaply."""
        return part

    def address(self) -> str:
        """Returns this process's address, for actors that receive a broadcast from it."""
        return "127.0.0.1"

    @abstractmethod
    def kill(self, actor: Any, pid: int, node: str) -> None:
        """End an actor, even if it hangs. pid, node: the actor's process and node; 0 and empty if unknown."""

    def broken(self) -> str:
        """Returns why no actor can start any more; empty if actors can start."""
        return ""

    @abstractmethod
    def disconnect(self) -> None:
        """Release all resources of the places. Called when all actors have ended."""
