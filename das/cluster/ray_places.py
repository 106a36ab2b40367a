"""Places for engines in Ray's cluster. Each has cores of one node, and one of its GPUs if there are any."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from das.cluster.actor import EngineActor
from das.cluster.local_ray import connect, dead, one_line
from das.cluster.messages import ClusterError, WeightsPart
from das.cluster.places import EngineLost, Places
from das.cluster.settings import ClusterSettings

PLACE_S = 30.0  # seconds within which Ray must find room for an engine at the start


class RayPlaces(Places):
    """Places for engines in Ray's cluster, each for one actor of Ray."""

    def __init__(self, cluster: ClusterSettings, threads: int, weights_bytes: int):
        """threads: number of cores of each engine. weights_bytes: size of the policy. Raises the errors of
        `connect`."""
        self._threads = threads
        self._groups: dict[int, Any] = {}  # Ray's placement groups, by place
        self._ray, self._disconnect = connect(cluster, threads, weights_bytes)
        self._node = self._ray.get_runtime_context().get_node_id()  # this process's
        self.gpus = int(self._ray.cluster_resources().get("GPU", 0))

    def open(self, number: int) -> None:
        """See Places."""
        bundle = {"CPU": self._threads, **({"GPU": 1} if self.gpus else {})}
        self._groups[number] = self._ray.util.placement_group([bundle])

    def close(self, number: int) -> None:
        """See Places."""
        self._ray.util.remove_placement_group(self._groups.pop(number))

    def require_room(self, engines: int) -> None:
        """See Places."""
        if 0 < self.gpus < engines:
            raise ClusterError(
                f"cluster.engines={engines}: Ray has {self.gpus} GPUs, and an engine takes one; set "
                f"cluster.engines={self.gpus} or add nodes"
            )
        if not all(group.wait(PLACE_S) for group in self._groups.values()):
            cores = self._ray.cluster_resources().get("CPU", 0)
            raise ClusterError(
                f"cluster.engines={engines}: Ray has {cores:g} cores and {self.gpus} GPUs, and not room "
                f"for all engines of {self._threads} cores each; ask for fewer, or add nodes"
            )

    def start_actor(self, number: int) -> Any:
        """See Places."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        # The actor has several threads, so it also answers while one of them starts the engine or loads weights.
        actor = self._ray.remote(EngineActor).options(
            num_cpus=self._threads,
            num_gpus=1 if self.gpus else 0,
            max_concurrency=4,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._groups[number]),
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(self._threads)}},
        )
        return actor.remote()

    def call(self, actor: Any, method: str, *args: Any) -> Any:
        """See Places."""
        return getattr(actor, method).remote(*args)

    def answered(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """See Places."""
        found: list[Any] = self._ray.wait(list(references), num_returns=1, timeout=timeout_s)[0]
        return found

    def answer(self, reference: Any) -> Any:
        """See Places."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise EngineLost(one_line(error)) from error

    def shared(self, part: WeightsPart) -> Any:
        """See Places. Puts the part into Ray's object store, and returns Ray's reference to it."""
        return self._ray.put(part)

    def address(self) -> str:
        """See Places."""
        address: str = self._ray.util.get_node_ip_address()
        return address

    def kill(self, actor: Any, pid: int, node: str) -> None:
        """See Places. It also ends stopped processes and, if Ray has ended, processes on this node."""
        if pid and node == self._node:
            kill_process(pid)
        if self.broken():
            return  # nobody would answer
        if pid and node != self._node:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            there = NodeAffinitySchedulingStrategy(node, soft=False)
            self._ray.remote(kill_process).options(num_cpus=0, scheduling_strategy=there).remote(pid)
        self._ray.kill(actor)

    def broken(self) -> str:
        """See Places."""
        gone = dead(self._ray)
        return f"Ray cannot go on: its process {gone} has died" if gone else ""

    def disconnect(self) -> None:
        """See Places."""
        self._disconnect()


def kill_process(pid: int) -> None:
    """Send SIGKILL, which ends a stopped process, too."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
