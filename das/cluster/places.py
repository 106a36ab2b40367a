"""Places: room for engines in Ray's cluster. An engine that dies leaves its place to its successor."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from das.cluster.actor import EngineActor
from das.cluster.messages import ClusterError
from das.cluster.settings import ClusterSettings

PLACE_S = 30.0  # seconds within which Ray must find room for an engine at the start


@dataclass
class Place:
    """Cores, and a GPU if there are any, of one node."""

    group: Any  # Ray's placement group
    failed_starts: int = 0  # of engines, in a row


class Places:
    """The places of one trainer's engines. ray: the module, connected. threads: cores of an engine.

    Raises ClusterError, in one line, where Ray has GPUs, and too few.
    """

    def __init__(self, ray: Any, cluster: ClusterSettings, threads: int):
        self._ray, self._threads = ray, threads
        self.opened: dict[int, Place] = {}  # by number
        self._begun = 0
        self.gpus = int(ray.cluster_resources().get("GPU", 0))
        if 0 < self.gpus < cluster.engines:
            raise ClusterError(
                f"cluster.engines={cluster.engines}: Ray has {self.gpus} GPUs, and an engine takes one; set "
                f"cluster.engines={self.gpus} or add nodes"
            )

    def open(self) -> int:
        """Ask for one more place. Returns its number."""
        number, self._begun = self._begun, self._begun + 1
        bundle = {"CPU": self._threads, **({"GPU": 1} if self.gpus else {})}
        self.opened[number] = Place(self._ray.util.placement_group([bundle]))
        return number

    def close(self, number: int) -> None:
        """Give a place back."""
        self._ray.util.remove_placement_group(self.opened.pop(number).group)

    def require_room(self) -> None:
        """Wait until Ray has found room for all places. Raises ClusterError where it does not."""
        if not all(place.group.wait(PLACE_S) for place in self.opened.values()):
            cores = self._ray.cluster_resources().get("CPU", 0)
            raise ClusterError(
                f"cluster.engines={len(self.opened)}: Ray has {cores:g} cores and {self.gpus} GPUs, and not room "
                f"for all engines of {self._threads} cores each; ask for fewer, or add nodes"
            )

    def start_actor(self, number: int) -> Any:
        """Start an engine's actor at a place, in the background."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        # Some threads of the actor wait for the engine's thread; it also answers while it loads or starts.
        actor = self._ray.remote(EngineActor).options(
            num_cpus=self._threads,
            num_gpus=1 if self.gpus else 0,
            max_concurrency=4,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self.opened[number].group),
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(self._threads)}},
        )
        return actor.remote()

    def kill_actor(self, actor: Any, pid: int, node: str) -> None:
        """Kill an actor and its process on this node, even if it is stopped or hangs. pid: 0 if it is not known."""
        if pid and node == self._ray.get_runtime_context().get_node_id():
            kill_process(pid)
        elif pid:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            there = NodeAffinitySchedulingStrategy(node, soft=False)
            self._ray.remote(kill_process).options(num_cpus=0, scheduling_strategy=there).remote(pid)
        self._ray.kill(actor)


def kill_process(pid: int) -> None:
    """Send SIGKILL. It also ends a process that is stopped."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
