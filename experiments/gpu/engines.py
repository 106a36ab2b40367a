"""Build the engines of task=check_gpu: random weights, made on the device."""

import os
from collections.abc import Mapping
from typing import Any

from das.engine.settings import STOCK
from experiments.gpu.scale import Scale

# Graphs, but no Inductor, which takes minutes, and may not know this torch.
NO_COMPILER: dict[str, Any] = {"compilation_config": {"mode": 0}}
SHAPE, THIN = "8b", "8b_thin"  # on a GPU; the second: 8B's width, and so its kernels, in four layers


def build(
    scale: Scale,
    method: str,
    shape: str = SHAPE,
    exact: str = "distribution",
    das_options: Mapping[str, Any] | None = None,
    own_process: bool = False,
    **arguments: Any,
) -> Any:
    """Build an engine. `stock` is vLLM as it comes; other methods are das's.

    shape: of experiments/small_policy/shapes.py; a CPU takes a tiny one. das_options: of das.engine_arguments.
    own_process: whether the engine's core gets a process of its own. arguments: further ones of vllm.LLM.
    """
    import das
    from das.engine.environment import in_this_process, variables
    from experiments.small_policy.shapes import random_policy, shape_of, weightless_policy

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")  # the log says which kernels and graphs were chosen
    if method == STOCK:
        made: dict[str, Any] = {"logprobs_mode": "processed_logprobs"}  # as TRL sets it
    else:
        das.install(exact=exact)
        # A CPU takes the way that a GPU takes by default.
        asynchronous: dict[str, Any] = {"asynchronous": True} if method == "das" and not scale.gpu else {}
        made = das.engine_arguments(method, exact=exact, **asynchronous, **(das_options or {}))
    from vllm import LLM

    name, dtype = scale.pick(shape, "tiny"), scale.pick("bfloat16", "float32")
    make = weightless_policy if scale.gpu else random_policy
    policy = make(name, shape_of(name).vocabulary or 512, dtype, scale.cache / "policies")
    on_gpu = NO_COMPILER | {"load_format": "dummy", "gpu_memory_utilization": 0.6}
    # Room for every request with the longest draft.
    made |= {"skip_tokenizer_init": True, "dtype": dtype, "max_num_batched_tokens": scale.pick(16384, 1024)}
    made |= scale.pick(on_gpu, {"enforce_eager": True, "gpu_memory_utilization": 0.1})
    with variables(in_this_process() | {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(own_process))}):
        return LLM(str(policy), **made | arguments)


def worker_of(llm: Any) -> Any:
    """Return the worker of an engine in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def sharpen(llm: Any) -> None:
    """Make the engine's random weights say something: vLLM's are so small that all tokens are equally likely."""
    head = worker_of(llm).model_runner.get_model().lm_head.weight
    head.mul_(4.0 / head.float().std().item() / head.shape[1] ** 0.5)


def kv_tokens(llm: Any) -> int:
    """Return how many tokens the engine's KV cache holds."""
    cache = llm.llm_engine.vllm_config.cache_config
    return int(cache.num_gpu_blocks * cache.block_size)
