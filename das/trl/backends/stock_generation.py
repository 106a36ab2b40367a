"""TRL's generation backend on vLLM as it comes: the arm `stock`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from trl.generation.vllm_generation import VLLMGeneration

from das.engine.patches import weights
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.engine.stock import build_stock, roll_out_stock
from das.trl.generation import SpeculativeGeneration

CHECKED_SYNCS = 2  # the first has the weights that the engine was built with; if the second arrives, all do


class StockGeneration(SpeculativeGeneration):
    """SpeculativeGeneration without keyed verification and drafts: TRL's own weight sync and vLLM's own sampler.

    It has no history, so there is none to save.
    """

    def _build_engine(self, **overrides: Any) -> Any:
        return build_stock(self.engine, trained=True, **overrides)

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        return VLLMGeneration._iter_named_params(self)

    def _load_weights(self) -> str:
        """Load the trainer's weights as TRL does; on the CPU, pack them too."""
        VLLMGeneration.sync_weights(self)
        weights.repack_linear_layers(self.llm.llm_engine.model_executor.driver_worker.model_runner.model)
        self.check_s = 0.0
        return ""

    def _compare_logprobs(self) -> str:
        """The first syncs of the training are checked, and those of evaluations up to then."""
        if self.syncs == CHECKED_SYNCS:
            return ""
        self.syncs += 1
        return super()._compare_logprobs()

    def _roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        return roll_out_stock(self.llm, request, self._engine_generate)

    def _roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Any], Rollout]:
        return self._roll_out(request)

    def _end_turns(self) -> dict[str, Any]:
        return {}

    @contextmanager
    def _evaluation_drafter(self) -> Iterator[None]:
        yield  # it has no drafter

    def save_history(self, path: Path) -> None:
        pass

    def save_state(self, folder: Path) -> None:
        pass

    def load_state(self, folder: Path) -> None:
        pass
