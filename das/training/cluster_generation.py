"""TRL's generation backend on a cluster of engines (das/cluster): the trainer deals requests and weights out."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from das.cluster.cluster import Cluster
from das.cluster.messages import ClusterError, WeightsPart
from das.cluster.settings import ClusterSettings
from das.engine.build import EngineError
from das.engine.rollout import Rollout, RolloutRequest
from das.training.remote_generation import RemoteGeneration


class ClusterGeneration(RemoteGeneration):
    """RemoteGeneration on engines of a cluster. Seeds are those of an engine in this process, so tokens, rewards,
    losses and weights are equal, bit for bit, with any number of engines.

    After each sync every engine compares a sample of tensors, and all engines must give the same log-probs to a text,
    which are compared with the trainer's.
    """

    def __init__(self, *args: Any, cluster: ClusterSettings, **kwargs: Any):
        """cluster: how many engines, and where. The other arguments are those of SpeculativeGeneration.

        Raises EngineError where the engines cannot be started, or for what a cluster does not do.
        """
        self.cluster_settings = cluster
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        for unwanted, why in (
            (self.accelerator.num_processes > 1, "launch the trainer as a single process"),
            (self.enable_sleep_mode, "its engines do not share the trainer's memory: set vllm_enable_sleep_mode=False"),
            (self.tensor_parallel_size > 1, "its engines are one process each: set vllm_tensor_parallel_size=1"),
            (self.mode == "server", 'it starts its engines itself: set vllm_mode="colocate"'),
        ):
            if unwanted:
                raise EngineError(f"cluster: {why}")
        self.llm: Any = None
        try:
            self.cluster = Cluster(
                self.cluster_settings,
                self.engine,
                kv_cache_gib=int(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")),
                threads=torch.get_num_threads(),
                weights_bytes=sum(p.numel() * p.element_size() for p in self.model.parameters()),
            )
        except ClusterError as error:
            raise EngineError(str(error)) from error
        self._dtype = getattr(torch, next(iter(self.cluster.engines.call_all("dtype").values())))

    def _load_parts(self, parts: list[WeightsPart], check: Sequence[str]) -> str:
        return self.cluster.engines.load_weights(parts, check)

    def _probe(self, tokens: Sequence[int]) -> np.ndarray:
        return self.cluster.probe(tokens)

    def _roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        return self.cluster.roll_out(request)

    def _roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Any], Rollout]:
        return self.cluster.roll_out_turn(request, turn)

    def _end_turns(self) -> dict[str, Any]:
        return self.cluster.end_turns(self.step, self.history_tick, self.evaluation)

    @contextmanager
    def _evaluation_drafter(self) -> Iterator[None]:
        with self.cluster.evaluation():
            yield

    def _save_history(self, path: Path) -> None:
        self.cluster.save_history(path)

    def _save_drafter(self, folder: Path) -> None:
        self.cluster.save_state(folder)

    def _load_drafter(self, folder: Path) -> None:
        self.cluster.load_state(folder)

    def _end(self) -> None:
        self.cluster.engines.stop()
        self._jobs.shutdown()
        self.cluster.close()
