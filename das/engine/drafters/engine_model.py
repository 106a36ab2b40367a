"""Base class of models that draft in an engine. das.engine.proposer attaches them, and das.model_drafts calls them."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from das.model_drafts.drafter import Drawn
from das.verify.coupled import CoupledSampler

if TYPE_CHECKING:
    from das.engine.runner.runner import Runner


logger = logging.getLogger("vllm.das")


class EngineModel(ABC):
    """A model that drafts in the engine of one model runner, with the verifier's own noise.

    BROKEN: the text of the alarm that is raised if the model computes values that are not finite. The model then drafts
    nothing until new weights come.
    """

    BROKEN: str

    def __init__(self) -> None:
        self.sampler = CoupledSampler()
        self._runner = cast("Runner", None)  # until the model is attached
        self._broken: int | None = None  # version of the policy's weights with which values were not finite
        self._alarms: list[str] = []

    @abstractmethod
    def attach(self, runner: "Runner") -> None:
        """Connect this model to the model runner whose requests it drafts for. The runner's KV cache already exists.

        Called before every round of drafts.
        """

    def clock(self) -> float:
        """See DraftingModel."""
        return time.perf_counter()

    def prepare(self, requests: Sequence[str]) -> float | None:
        """See DraftingModel."""
        return None if self._broken == self._runner.weights_version else 0.0

    def observe(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """See DraftingModel."""
        self.sampler.observe(requests, tokens)

    def alarms(self) -> list[str]:
        """Returns the alarms since the last call, one line each."""
        alarms, self._alarms = self._alarms, []
        return alarms

    def _rows(self, requests: Sequence[str]) -> np.ndarray:
        """Returns the rows of these requests in the runner's batch, int64 [R]."""
        batch = self._runner.input_batch
        return np.array([batch.req_id_to_index[name] for name in requests], np.int64)

    def _drawn(self, model: Any, hidden: torch.Tensor, among: np.ndarray) -> Drawn:
        """Draw a token from each hidden state, [A, hidden]. model: the module that computes logits from hidden states.

        among: for each hidden state, the index of its request in the round, int64 [A]. Returns None if a value is not
        finite.
        """
        if not bool(torch.isfinite(hidden).all()):
            self._broken = self._runner.weights_version
            self._alarms.append(self.BROKEN)
            logger.error("speculation: %s", self.BROKEN)
            return None
        return self.sampler.draw(model.compute_logits(hidden).float(), among)
