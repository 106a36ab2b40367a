"""TRL's generation backend on one engine in a process of its own, without Ray."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from das.cluster.messages import WeightsPart
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.errors import EngineError
from das.trl.backends.engine_process import EngineProcess
from das.trl.backends.remote_generation import RemoteGeneration


class ConcurrentGeneration(RemoteGeneration):
    """RemoteGeneration on an EngineProcess. The drafter's state is the engine's, as on an engine in this process."""

    llm: EngineProcess

    def _init_vllm(self) -> None:
        if self.enable_sleep_mode or self.accelerator.num_processes > 1:
            raise EngineError("an engine in its own process has no sleep mode, and one process trains beside it")
        self.llm = EngineProcess(self.engine, torch.get_num_threads())
        self._dtype = getattr(torch, self.llm.call("dtype"))

    def _load_parts(self, parts: list[WeightsPart], check: Sequence[str]) -> str:
        return self.llm.load_weights(parts, check)

    def _probe(self, tokens: Sequence[int]) -> np.ndarray:
        return self.llm.probe(tokens)

    def _roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        return self.llm.roll_out(request)

    def _end(self) -> None:
        self.llm.close()
