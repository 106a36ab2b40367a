"""A router of verl's that sends all requests of a problem to one replica, so that they find the problem's history."""

from typing import Any

from verl.workers.rollout.router import GlobalRequestLoadBalancer


class ByProblem(GlobalRequestLoadBalancer):
    """A new problem goes to the replica with the fewest requests, and stays there as long as the replica is in use."""

    def __init__(self, servers: dict[str, Any], config: Any):
        super().__init__(servers)
        self._server_of: dict[str, str] = {}  # by problem

    def require_acquire_fields(self) -> list[str]:
        """Which arguments of generate() `acquire_server` gets."""
        return ["sampling_params"]

    def acquire_server(self, request_id: str, sampling_params: dict[str, Any]) -> tuple[str, Any]:
        """Returns the replica's name and handle."""
        if not self._inflight_requests:
            raise RuntimeError(
                "No available servers in load balancer"
            )  # verl's asynchronous client looks for these words
        problem = sampling_params["extra_args"]["das_problem"]
        server = self._server_of.get(problem)
        if server not in self._inflight_requests:
            server = min(self._inflight_requests, key=self._inflight_requests.__getitem__)
            self._server_of[problem] = server
        self._inflight_requests[server] += 1
        return server, self._servers[server]
