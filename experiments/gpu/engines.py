"""Build the engines of task=check_gpu: random weights, made on the device."""

import os
from collections.abc import Sequence
from typing import Any

from das.engine.settings import STOCK
from experiments.gpu.scale import Row, Scale

SHAPE, THIN = "8b", "8b_thin"  # on a GPU; the second: 8B's width, and so its kernels, in four layers
BATCHED = "max_num_batched_tokens"
# Graphs, but no Inductor, which takes minutes, and may not know this torch.
ON_GPU: Row = {"dtype": "bfloat16", "load_format": "dummy", "compilation_config": {"mode": 0}, BATCHED: 16384}
ON_CPU: Row = {"dtype": "float32", "enforce_eager": True, "gpu_memory_utilization": 0.1, BATCHED: 1024}


def build(scale: Scale, method: str, shape: str = SHAPE, options: Row | None = None, **arguments: Any) -> Any:
    """Build an engine. `stock` is vLLM as it comes; other methods are das's.

    shape: of experiments/small_policy/shapes.py; a CPU takes a tiny one. options: of das.engine_arguments. arguments:
    further ones of vllm.LLM, and `apart`: whether the engine's core gets a process of its own.
    """
    import das
    from das.engine.environment import in_this_process, variables
    from experiments.small_policy.shapes import random_policy, shape_of, weightless_policy

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")  # the log says which kernels and graphs were chosen
    made: Row = {"logprobs_mode": "processed_logprobs"}  # as TRL sets it
    if method != STOCK:
        late = True if method == "das" and not scale.gpu else None  # a CPU takes the way that a GPU takes by default
        options = {"exact": "distribution", "asynchronous": late, **(options or {})}
        das.install(exact=options["exact"])
        made = das.engine_arguments(method, **options)
    from vllm import LLM

    name, apart = scale.pick(shape, "tiny"), str(int(arguments.pop("apart", False)))
    made |= {"skip_tokenizer_init": True, "gpu_memory_utilization": 0.6} | arguments | scale.pick(ON_GPU, ON_CPU)
    make = weightless_policy if scale.gpu else random_policy
    policy = make(name, shape_of(name).vocabulary or 512, made["dtype"], scale.cache / "policies")
    with variables(in_this_process() | {"VLLM_ENABLE_V1_MULTIPROCESSING": apart}):
        return LLM(str(policy), **made)


def roll_out(llm: Any, prompts: Sequence[Any], parameters: Sequence[Any]) -> tuple[list[Any], Row]:
    """Roll out with an engine of das. Returns vLLM's outputs, and the plain report."""
    llm.collective_rpc("das_begin_rollout", args=(len(prompts),))
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], parameters, use_tqdm=False)
    return outputs, llm.collective_rpc("das_end_rollout", args=(0,))[0]


def worker_of(llm: Any) -> Any:
    """Return the worker of an engine in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def kv_tokens(llm: Any) -> int:
    """Return how many tokens the engine's KV cache holds."""
    cache = llm.llm_engine.vllm_config.cache_config
    return int(cache.num_gpu_blocks * cache.block_size)
