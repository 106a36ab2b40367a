"""An engine in the trainer's process: an engine of das, or unmodified vLLM."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from das.drafter.saved import SavedText
from das.engine.build import EngineSettings, build_engine
from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest, end_turns, roll_out, roll_out_turn
from das.engine.stock import build_stock, roll_out_stock
from das.trl.engines.engines import TrainersEngine
from das.weights.weight_check import WeightSample


class DasEngine:
    """An engine of das in the trainer's process. Implements das.trl.engines.engines.TrainersEngine."""

    compares_tensors = True
    logprob_checks: float = math.inf

    def __init__(self, llm: Any, generate: Callable[..., Any]):
        """generate: vLLM's original llm.generate, which the trainer replaces in `llm`."""
        self.llm = llm
        self.generate = generate

    def take_weights(self, sample: WeightSample) -> str:
        """See TrainersEngine."""
        self.llm.collective_rpc("das_use_new_weights")
        return sample.problem(self.llm)

    def load_head(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> str:
        """See TrainersEngine."""
        for lost in self.llm.collective_rpc("das_load_head", args=(tensors,)):
            if lost:
                return f"the new weights of the drafter did not reach the engine: {lost}"
        return ""

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """See Engines."""
        return roll_out(self.llm, request, self.generate)

    def roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Any], Rollout]:
        """See Engines."""
        return roll_out_turn(self.llm, request, turn, self.generate)

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """See Engines."""
        return end_turns(self.llm, step, next_history_tick, evaluation)

    def add_history(self, history_tick: int, texts: Sequence[SavedText]) -> None:
        """Add responses that other engines finished to the drafter's history. history_tick: the window's tick."""
        self._tell("das_add_history", history_tick, texts)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """See Engines."""
        self._tell("das_begin_evaluation")
        try:
            yield
        finally:
            self._tell("das_end_evaluation")

    def save_history(self, path: Path) -> None:
        """See Engines."""
        self._tell("das_save_history", str(path))

    def save_state(self, folder: Path) -> None:
        """See Engines."""
        self._tell("das_save_state", str(folder))

    def load_state(self, folder: Path) -> None:
        """See Engines."""
        self._tell("das_load_state", str(folder))

    def close(self) -> None:
        """Do nothing: the engine ends with the trainer's process."""

    def _tell(self, method: str, *args: Any) -> None:
        """Call a method of DasWorker."""
        self.llm.collective_rpc(method, args=args)


class StockEngine(DasEngine):
    """Unmodified vLLM, without keyed verification and drafts. Its worker has no methods of das."""

    compares_tensors = False
    # The first sync brings the weights with which the engine was built. If those of the second arrive, later ones do.
    logprob_checks: float = 2

    def take_weights(self, sample: WeightSample) -> str:
        """See TrainersEngine. On the CPU vLLM computes with packed weights, so the new weights are packed."""
        from das.engine.patches import weights  # here, because it imports vLLM, which some processes do without

        weights.repack_linear_layers(self.llm.llm_engine.model_executor.driver_worker.model_runner.model)
        sample.take()
        return ""

    def load_head(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> str:
        """Raises NotImplementedError, because this engine has no drafter."""
        raise NotImplementedError

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """See Engines."""
        return roll_out_stock(self.llm, request, self.generate)

    def roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Any], Rollout]:
        """See Engines."""
        return self.roll_out(request)

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """See Engines."""
        return RolloutReport()

    def _tell(self, method: str, *args: Any) -> None:
        """Do nothing: there is no DasWorker."""


def build_in_process(settings: EngineSettings, trained: bool = False, **overrides: Any) -> TrainersEngine:
    """Build an engine in this process, of das or stock as `settings.method` says. trained: whether the engine will get
    new weights. overrides: further arguments of vllm.LLM. Raises the errors of build_engine.
    """
    if settings.row.keyed:
        llm = build_engine(settings, **overrides)
        return DasEngine(llm, llm.generate)
    llm = build_stock(settings, trained, **overrides)
    return StockEngine(llm, llm.generate)
