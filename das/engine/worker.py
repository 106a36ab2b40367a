"""Methods added to vLLM's worker (worker_extension_cls), reached by `collective_rpc` in process or not."""

import time
from pathlib import Path
from typing import Any

from das.engine.meter import RolloutMeter
from das.engine.patches import meter, repack_linear_layers, require_applied
from das.engine.proposer import DasProposer


class DasWorker:
    """Mixed into the worker class by vLLM; `self.model_runner` is the worker's."""

    model_runner: Any

    def das_begin_rollout(self, requests: int) -> None:
        """Start counting a new rollout of this many requests."""
        require_applied()
        self.model_runner.das_meter = RolloutMeter()
        drafter: Any = getattr(self.model_runner, "drafter", None)
        if hasattr(drafter, "begin_step"):
            drafter.begin_step(requests)

    def das_use_proposer(self, name: str, settings: dict[str, Any]) -> None:
        """Draft with the proposer of this name from now on; made from {"drafter": ..., "budget": ...} on first use.

        Lets one engine compare drafters and budgets, each with a history of its own.
        """
        runner: Any = self.model_runner
        if not hasattr(runner, "das_proposers"):
            runner.das_proposers = {}
        if name not in runner.das_proposers:
            runner.das_proposers[name] = DasProposer(runner.vllm_config, settings)
        runner.drafter = runner.das_proposers[name]

    def das_end_rollout(self, clock: int, judged: bool = True) -> dict[str, Any]:
        """Close the rollout: its meter's report, with the window moved to `clock` where there is a history.

        judged: whether the alarm compares it with the rollouts before; False for an evaluation.
        """
        require_applied()
        drafter: Any = getattr(self.model_runner, "drafter", None)
        counts = meter(self.model_runner)
        history: dict[str, Any] = {}
        if hasattr(drafter, "end_step"):
            start = time.perf_counter()
            history = drafter.end_step(clock, judged)
            counts.draft_s += time.perf_counter() - start
        self.model_runner.das_meter = RolloutMeter()  # for those who only ever end rollouts
        return counts.report() | history

    def das_save_history(self, path: str) -> None:
        """Write the drafter's history and weights, for `drafter.warm`; nothing where no history is kept."""
        drafter: Any = getattr(self.model_runner, "drafter", None)
        if isinstance(drafter, DasProposer):
            drafter.draft_round.drafter.save(Path(path))

    def das_save_state(self, folder: str) -> None:
        """Write the drafter's part of a checkpoint into `folder`; nothing for engines without our drafter."""
        drafter: Any = getattr(self.model_runner, "drafter", None)
        if isinstance(drafter, DasProposer):
            drafter.save(Path(folder))

    def das_load_state(self, folder: str) -> None:
        """Draft on as the engine that saved would have."""
        drafter: Any = getattr(self.model_runner, "drafter", None)
        if isinstance(drafter, DasProposer):
            drafter.load(Path(folder))

    def das_repack(self) -> None:
        """Make the linear layers use the weights that were just loaded (CPU)."""
        repack_linear_layers(self.model_runner.model)
