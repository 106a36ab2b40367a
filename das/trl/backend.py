"""Choose a trainer's generation backend by the place where its engines run."""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from das.cluster.cluster import Cluster
from das.cluster.pool import EnginePool
from das.cluster.settings import ClusterSettings
from das.errors import EngineError
from das.trl.colocated_generation import ColocatedGeneration
from das.trl.engines.cluster import ClusterEngines
from das.trl.generation import SpeculativeGeneration
from das.trl.queued_generation import QueuedGeneration

# One engine beside the trainer. Nothing else rolls out, so it may be silent for longer.
BESIDE = ClusterSettings(engines=1, silent_s=600.0)


def choose_backend(
    cluster: ClusterSettings | None = None, beside: bool = False, server: bool = False
) -> Callable[..., SpeculativeGeneration]:
    """Choose the class of the backend. Returns a callable that takes the arguments of SpeculativeGeneration.

    cluster: settings of engines on Ray. beside: whether one engine runs on Ray, beside the trainer. server: whether a
    server runs already. If no argument says where, the engine runs in the trainer's process.
    """
    if server:
        from das.trl.server_generation import ServerGeneration

        return ServerGeneration
    if cluster is not None or beside:
        return functools.partial(QueuedGeneration, start=functools.partial(_start_cluster, cluster or BESIDE))
    return ColocatedGeneration


def _start_cluster(settings: ClusterSettings, generation: Any) -> ClusterEngines:
    for unwanted, why in (
        (generation.enable_sleep_mode, "have no sleep mode: set vllm_enable_sleep_mode=False"),
        (generation.tensor_parallel_size > 1, "are one process each: set vllm_tensor_parallel_size=1"),
        (generation.mode == "server", 'are started by das: set vllm_mode="colocate"'),
    ):
        if unwanted:
            raise EngineError(f"engines in processes of their own {why}")
    kv_cache_gib = int(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"))
    return ClusterEngines(
        lambda: Cluster(EnginePool(settings, generation.engine, kv_cache_gib, torch.get_num_threads()))
    )
