"""The smallest cluster: one engine in a child process of the trainer, which lasts as long as the training."""

from collections.abc import Mapping
from pathlib import Path

from das.cluster.cluster import Cluster, Running
from das.cluster.history_store import HistoryStore
from das.cluster.pool import EnginePool
from das.cluster.process_places import ProcessPlaces
from das.cluster.settings import ClusterSettings
from das.engine.build import EngineSettings
from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest, measured_rollout

FOREVER_S = 1e9  # in seconds. The trainer waits for the engine without limit, because nothing would replace the engine


class OneProcess(Cluster):
    """A cluster of one engine. The engine itself keeps what it learns, and its reports have no entries about a cluster.

    Raises EngineDied if the engine's process has died, and every error that build_engine raises.
    """

    def __init__(self, engine: EngineSettings, threads: int):
        """threads: number of threads of the engine. The thread that calls this must live as long as the engine."""
        alone = ClusterSettings(engines=1, silent_s=FOREVER_S, start_s=FOREVER_S)
        super().__init__(EnginePool(alone, engine, threads=threads, places=ProcessPlaces()))
        self.history = HistoryStore(0)

    def _reported(self, reports: Mapping[int, RolloutReport]) -> RolloutReport:
        (report,) = reports.values()
        return report

    def _measured(self, request: RolloutRequest, running: Running, reports: Mapping[int, RolloutReport]) -> Rollout:
        return measured_rollout(
            request,
            [response.tokens.tolist() for response in running.ordered],
            [response.finish_reason for response in running.ordered],
            [response.cost for response in running.ordered],
            running.rollout_s,
            self._reported(reports),
        )

    def save_history(self, path: Path) -> None:
        """Write the engine's history, a file that the option `drafter.warm` can read."""
        self._tell("das_save_history", str(path))

    def save_state(self, folder: Path) -> None:
        """Write what the engine learned, for a checkpoint."""
        self._tell("das_save_state", str(folder))

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""
        self._tell("das_load_state", str(folder))

    def _tell(self, method: str, *args: str) -> None:
        """Call a method of DasWorker."""
        self.engines.call_all("collective_rpc", method, args)
