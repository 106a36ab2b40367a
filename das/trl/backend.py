"""Choose a trainer's generation backend by the place where its engines run."""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from das.cluster.cluster import Cluster
from das.cluster.one_process import OneProcess
from das.cluster.pool import EnginePool
from das.cluster.settings import ClusterSettings
from das.errors import EngineError
from das.trl.colocated_generation import ColocatedGeneration
from das.trl.engines.cluster import ClusterEngines
from das.trl.generation import SpeculativeGeneration
from das.trl.queued_generation import QueuedGeneration


def choose_backend(
    cluster: ClusterSettings | None = None, beside: bool = False, server: bool = False
) -> Callable[..., SpeculativeGeneration]:
    """Choose the class of the backend. Returns a callable that takes the arguments of SpeculativeGeneration.

    cluster: settings of engines on Ray. beside: whether one engine has a process of its own. server: whether a server
    runs already. If no argument says where, the engine runs in the trainer's process.
    """
    if server:
        from das.trl.server_generation import ServerGeneration

        return ServerGeneration
    if cluster is not None:
        return functools.partial(QueuedGeneration, start=functools.partial(_start_cluster, cluster))
    return functools.partial(QueuedGeneration, start=_start_process) if beside else ColocatedGeneration


def _start_process(generation: Any) -> ClusterEngines:
    if generation.enable_sleep_mode or generation.accelerator.num_processes > 1:
        raise EngineError("an engine in its own process has no sleep mode, and one process trains beside it")
    return ClusterEngines(functools.partial(OneProcess, generation.engine, torch.get_num_threads()))


def _start_cluster(settings: ClusterSettings, generation: Any) -> ClusterEngines:
    for unwanted, why in (
        (
            generation.enable_sleep_mode,
            "its engines do not share the trainer's memory: set vllm_enable_sleep_mode=False",
        ),
        (generation.tensor_parallel_size > 1, "its engines are one process each: set vllm_tensor_parallel_size=1"),
        (generation.mode == "server", 'it starts its engines itself: set vllm_mode="colocate"'),
    ):
        if unwanted:
            raise EngineError(f"cluster: {why}")
    device: torch.device = generation.accelerator.device

    def start() -> Cluster:
        return Cluster(
            EnginePool(
                settings,
                generation.engine,
                kv_cache_gib=int(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")),
                threads=torch.get_num_threads(),
                weights_bytes=sum(p.numel() * p.element_size() for p in generation.model.parameters()),
                device=torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device,
            )
        )

    return ClusterEngines(start)
