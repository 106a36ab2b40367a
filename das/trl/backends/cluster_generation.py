"""TRL's generation backend on a cluster of engines (das/cluster): the trainer deals requests and weights out.

Of several ranks only the main one talks to the cluster. It rolls out what all ask for, and hands each its responses.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from das import ranks
from das.cluster.cluster import Cluster
from das.cluster.messages import ClusterError, WeightsPart
from das.cluster.settings import ClusterSettings
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.errors import EngineError
from das.trl.backends.remote_generation import RemoteGeneration
from das.trl.merge import divided


class ClusterGeneration(RemoteGeneration):
    """RemoteGeneration on engines of a cluster. Seeds are those of an engine in this process, so tokens, rewards,
    losses and weights are equal, bit for bit, with any number of engines. With several ranks they equal those of as
    many ranks that have an engine each.

    After each sync every engine compares a sample of tensors, and all engines must give the same log-probs to a text,
    which are compared with the trainer's.
    """

    engines_of_all_ranks = True

    def __init__(self, *args: Any, cluster: ClusterSettings, **kwargs: Any):
        """cluster: how many engines, and where. The other arguments are those of SpeculativeGeneration.

        Raises EngineError where the engines cannot be started, or for what a cluster does not do.
        """
        self.cluster_settings = cluster
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        for unwanted, why in (
            (self.enable_sleep_mode, "its engines do not share the trainer's memory: set vllm_enable_sleep_mode=False"),
            (self.tensor_parallel_size > 1, "its engines are one process each: set vllm_tensor_parallel_size=1"),
            (self.mode == "server", 'it starts its engines itself: set vllm_mode="colocate"'),
        ):
            if unwanted:
                raise EngineError(f"cluster: {why}")
        self.llm: Any = None
        self.cluster: Cluster  # on the main rank
        weights_bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())
        self._dtype = getattr(torch, ranks.from_main(lambda: self._start_engines(weights_bytes)))

    def _start_engines(self, weights_bytes: int) -> str:
        """Start the engines, and say what type they compute in."""
        try:
            self.cluster = Cluster(
                self.cluster_settings,
                self.engine,
                kv_cache_gib=int(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")),
                threads=torch.get_num_threads(),
                weights_bytes=weights_bytes,
                device=self._own_device(),
            )
        except ClusterError as error:
            raise EngineError(str(error)) from error
        dtype: str = next(iter(self.cluster.engines.call_all("dtype").values()))
        return dtype

    def _own_device(self) -> torch.device:
        device: torch.device = self.accelerator.device
        return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device

    def _load_parts(self, parts: list[WeightsPart], check: Sequence[str]) -> str:
        return self.cluster.engines.load_weights(parts, check)

    def _probe(self, tokens: Sequence[int]) -> np.ndarray:
        return ranks.from_main(lambda: self.cluster.probe(tokens))

    def _roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """Roll out what all ranks ask for, on the main rank. Each gets the responses that it asked for."""
        asked = ranks.gather((request.prompts, list(request.problems), list(request.seeds)))
        parts: list[tuple[list[Any], Rollout]] = []
        ranks.from_main(lambda: parts.extend(self._roll_out_for(request, asked)))
        start = time.thread_time()
        responses, rollout = ranks.scatter(parts)
        if ranks.is_main():
            tokens = sum(part.tokens for _, part in parts)
            rollout.report["cluster"]["handover_us_per_token"] += 1e6 * (time.thread_time() - start) / tokens
        return responses, rollout

    def _roll_out_for(
        self, request: RolloutRequest, asked: Sequence[tuple[Sequence[Any], list[str], list[int]]]
    ) -> list[tuple[list[Any], Rollout]]:
        """The responses and the rollout of each rank. asked: prompts, problems and seeds of each rank."""
        prompts, problems, seeds = (list(chain.from_iterable(of_ranks)) for of_ranks in zip(*asked, strict=True))
        responses, rollout = self.cluster.roll_out(replace(request, prompts=prompts, problems=problems, seeds=seeds))
        own = divided(rollout, [len(prompts) for prompts, _, _ in asked])
        waiting = iter(responses)
        return [(list(islice(waiting, len(part.responses))), part) for part in own]

    def _roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Any], Rollout]:
        return self.cluster.roll_out_turn(request, turn)

    def _end_turns(self) -> dict[str, Any]:
        return self.cluster.end_turns(self.step, self.history_tick, self.evaluation)

    @contextmanager
    def _evaluation_drafter(self) -> Iterator[None]:
        with self.cluster.evaluation() if ranks.is_main() else nullcontext():
            yield

    def _save_history(self, path: Path) -> None:
        if ranks.is_main():
            self.cluster.save_history(path)

    def _save_drafter(self, folder: Path) -> None:
        if ranks.is_main():
            self.cluster.save_state(folder)

    def _load_drafter(self, folder: Path) -> None:
        if ranks.is_main():
            self.cluster.load_state(folder)

    def _end(self) -> None:
        if ranks.is_main():
            self.cluster.engines.stop()
        self._jobs.shutdown()
        if ranks.is_main():
            self.cluster.close()
