"""Methods that das adds to vLLM's worker (worker_extension_cls). `collective_rpc` calls them, in any process."""

import time
from pathlib import Path
from typing import Any

from das.engine.meter import RolloutMeter
from das.engine.patches import meter, repack_linear_layers, require_applied
from das.engine.proposer import DasProposer


class DasWorker:
    """vLLM mixes this class into its worker class. `self.model_runner` belongs to the worker."""

    model_runner: Any

    @property
    def _das_proposer(self) -> DasProposer | None:
        """The engine's proposer if it is ours, None for stock engines and for vLLM's own drafters."""
        drafter: Any = getattr(self.model_runner, "drafter", None)
        return drafter if isinstance(drafter, DasProposer) else None

    def das_begin_rollout(self, num_requests: int) -> None:
        """Start counting a new rollout of this many requests."""
        require_applied()
        self.model_runner.das_meter = RolloutMeter()
        if self._das_proposer is not None:
            self._das_proposer.begin_step(num_requests)

    def das_use_proposer(self, name: str, settings: dict[str, Any]) -> None:
        """Draft with the proposer of this name from now on. One engine can so compare drafters and budgets.

        settings: {"drafter": ..., "budget": ...}. The first use of a name makes its proposer; it keeps its own history.
        """
        runner: Any = self.model_runner
        if not hasattr(runner, "das_proposers"):
            runner.das_proposers = {}
        if name not in runner.das_proposers:
            runner.das_proposers[name] = DasProposer(runner.vllm_config, settings)
        runner.drafter = runner.das_proposers[name]

    def das_end_rollout(self, history_tick: int, judged: bool = True) -> dict[str, Any]:
        """Close the rollout, and move the drafter's window to `history_tick` if the engine has our drafter.

        judged: whether the alarm compares it with the rollouts before; False for an evaluation. Returns the meter's
        report and what the proposer adds to it.
        """
        require_applied()
        counts = meter(self.model_runner)
        additions: dict[str, Any] = {}
        if self._das_proposer is not None:
            start = time.perf_counter()
            additions = self._das_proposer.end_step(history_tick, judged)
            counts.draft_s += time.perf_counter() - start
        self.model_runner.das_meter = RolloutMeter()  # for callers that never call das_begin_rollout
        return counts.report() | additions

    def das_save_history(self, path: str) -> None:
        """Write the drafter's history and weights, for `drafter.warm`. Does nothing without our drafter."""
        if self._das_proposer is not None:
            self._das_proposer.draft_round.drafter.save(Path(path))

    def das_save_state(self, folder: str) -> None:
        """Write the drafter's part of a checkpoint into `folder`. Does nothing without our drafter."""
        if self._das_proposer is not None:
            self._das_proposer.save(Path(folder))

    def das_load_state(self, folder: str) -> None:
        """Continue to draft as the engine that saved would have. Does nothing without our drafter."""
        if self._das_proposer is not None:
            self._das_proposer.load(Path(folder))

    def das_repack(self) -> None:
        """Make the linear layers use the weights that were just loaded (CPU)."""
        repack_linear_layers(self.model_runner.model)
