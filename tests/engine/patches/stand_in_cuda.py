"""Builds configurations of engines of das as on an H200 that is not there, and asks vLLM which pass takes which graph.

Argument: a folder for policies without weights. Prints a row for each shape and method: the settings that vLLM
chose, or the line that refuses the engine. It is a process of its own, because vLLM keeps its platform.
"""

import functools
import inspect
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from triton.backends.nvidia.driver import CudaDriver

KERNELS = ("_C_stable_libtorch", "_moe_C_stable_libtorch", "vllm_flash_attn._vllm_fa2_C", "vllm_flash_attn._vllm_fa3_C")
for name in KERNELS:  # kernels, which are not called
    sys.modules[f"vllm.{name}"] = ModuleType(name)
for name in (
    "scaled_mm_supports_fp8",
    "scaled_mm_supports_block_fp8",
    "group_gemm_supported",
    "scaled_mm_supports_fp4",
):
    setattr(torch.ops._C, f"cutlass_{name}", lambda capability: False)  # vLLM asks them when it is imported
CudaDriver.is_active = staticmethod(lambda: True)

from vllm import platforms  # noqa: E402
from vllm.platforms.cuda import NonNvmlCudaPlatform  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402

SEATS, DRAFTED, LONGEST = 256, 32, 8192
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "das": {},
    "ngram": {"speculative": {"num_speculative_tokens": 4, "prompt_lookup_max": 4}},
    "das distribution": {"exact": "distribution"},
    "self_draft": {"self_draft": "w4"},
}
PASSES = {  # drafted tokens of each request
    "1 live": [0],
    "64 live": [0] * 64,
    "256 live": [0] * 256,
    "64 live, 5 drafted": [5] + [0] * 63,
    "15 live, all draft 32": [32] * 15,
    "64 live, all draft 8": [8] * 64,
    "256 live, 400 drafted": [8] * 50 + [0] * 206,
    "256 live, 513 drafted": [8] * 64 + [1] + [0] * 191,
}


class StandIn(NonNvmlCudaPlatform):
    """An H200, as far as configurations ask."""

    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
    get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H200")
    get_device_total_memory = classmethod(lambda cls, device_id=0: 139 << 30)
    is_fully_connected = classmethod(lambda cls, devices: True)
    get_device_uuid = classmethod(lambda cls, device_id=0: "GPU-stand-in")
    device_count = classmethod(lambda cls: 1)
    get_global_graph_pool = classmethod(lambda cls: None)


platforms._current_platform = StandIn()
platforms.vllm_version_matches_substr = lambda substr: False  # a build for CPUs switches Triton off

import das  # noqa: E402
from experiments.policies.shapes import shape_of, weightless_policy  # noqa: E402


def configured(policy: Path, method: str) -> Any:
    """Returns the configuration of an engine after the checks and the settings of das's worker."""
    from vllm.engine.arg_utils import EngineArgs

    from das.engine.worker import DasWorker, PlatformWorker

    options = METHODS[method]
    budget = {"name": "fixed", "tokens": DRAFTED}
    arguments = das.engine_arguments(method.split()[0], budget=budget, **options)
    sizes = {"max_model_len": LONGEST, "max_num_seqs": SEATS, "max_num_batched_tokens": SEATS * (1 + DRAFTED)}
    config = EngineArgs(model=str(policy), load_format="dummy", skip_tokenizer_init=True, **sizes, **arguments)
    config = config.create_engine_config()

    def keep(worker: Any, vllm_config: Any) -> None:
        worker.vllm_config, worker.parallel_config = vllm_config, vllm_config.parallel_config

    PlatformWorker.__init__ = keep
    DasWorker(config)
    return config


def resolved_mode(config: Any, longest: int) -> Any:
    """Returns vLLM's mode of graphs with FlashAttention 3, which every graph supports. It may change their sizes."""
    from vllm.v1.attention.backend import AttentionCGSupport

    resolve = config.compilation_config.resolve_cudagraph_mode_and_sizes
    given = {
        "use_v2_model_runner": True,
        "tensor_parallel_size": 1,
        "max_num_reqs": SEATS,
        "piecewise_capture_available": True,
    }
    known = {name: value for name, value in given.items() if name in inspect.signature(resolve).parameters}
    return resolve(AttentionCGSupport.ALWAYS, "FLASH_ATTN", longest, **known)


def attention_of(support: str) -> Any:
    """Attention groups of a backend whose full graphs replay any pass ("ALWAYS"), or only those in which all requests
    have the same number of rows ("UNIFORM_BATCH", as FlashAttention 2)."""
    from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder

    made = {"get_cudagraph_support": classmethod(lambda cls, *args: AttentionCGSupport[support])}
    builder = type("Builder", (AttentionMetadataBuilder,), made)
    backend = SimpleNamespace(__name__="Backend")
    return [[SimpleNamespace(get_metadata_builder=lambda i: builder, kv_cache_spec=None, backend=backend)]]


def runner_of(config: Any, by_host: bool, support: str) -> Any:
    """Returns what das reads of vLLM's runner, with its manager of graphs. by_host: whether the drafter runs on the
    host. support: see attention_of."""
    from das.engine.runner.runner import ragged_graphs

    module = import_module("vllm.v1.worker.gpu.cudagraph_utils")
    module.get_pp_group = lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True)  # type: ignore[attr-defined]
    longest = 1 + config.num_speculative_tokens
    mode = resolved_mode(config, longest)
    runner = SimpleNamespace(attn_groups=attention_of(support), vllm_config=config, decode_query_len=longest)
    build = functools.partial(ragged_graphs, runner) if by_host else lambda original, *args: original(*args)
    runner.cudagraph_manager = build(module.CudaGraphManager, config, "cpu", mode, longest)
    runner.cudagraph_manager._graphs_captured = True
    return runner


def graphs_of(config: Any, by_host: bool, support: str = "ALWAYS") -> dict[str, str]:
    """Returns the graph that each of PASSES takes. by_host, support: see runner_of."""
    manager = runner_of(config, by_host, support).cudagraph_manager
    graphs = {}
    for name, drafted in PASSES.items():
        rows, most = sum(drafted) + len(drafted), 1 + max(drafted)
        uniform = most if rows == most * len(drafted) else None
        graphs[name] = manager.dispatch(len(drafted), rows, uniform, 0, most).cg_mode.name
    return graphs


def row(policy: Path, method: str) -> dict[str, Any]:
    try:
        config = configured(policy, method)
    except (RuntimeError, ValueError) as refused:
        return {"refused": " ".join(str(refused).split())}
    from das.engine.patches.gpu import rows_of_graphs
    from das.engine.runner.runner import drafts_in_one_graph

    compiled = config.compilation_config
    by_host = method.split()[0] in ("das", "self_draft", "ngram")
    found = {  # vLLM changes some of it when it resolves the mode of graphs
        "attention": getattr(config.attention_config.backend, "name", None),
        "norm": not {"+rms_norm", "all"}.isdisjoint(compiled.custom_ops),
        "asynchronous": bool(config.scheduler_config.async_scheduling),
        "mode": compiled.cudagraph_mode.name,
        "longest draft": config.num_speculative_tokens,
        "rows of graphs": rows_of_graphs(config),
        "largest": compiled.max_cudagraph_capture_size,
        "compiled": compiled.mode.name,
    }
    if by_host:
        ahead = {
            support: drafts_in_one_graph(runner_of(config, True, support)) for support in ("ALWAYS", "UNIFORM_BATCH")
        }
        found["in one graph"] = ahead
    return found | {
        "graphs": graphs_of(config, by_host),
        "uniform graphs": graphs_of(config, by_host, support="UNIFORM_BATCH"),
    }


def main() -> None:
    os.environ["VLLM_BATCH_INVARIANT"] = "1"
    das.install(exact="bits")
    from vllm.model_executor.models.registry import _LazyRegisteredModel

    _LazyRegisteredModel._save_modelinfo_to_cache = lambda *args: None  # it imports every kernel
    rows = {}
    for shape in ("7b", "100m"):
        policy = weightless_policy(shape, shape_of(shape).vocabulary or 32000, "bfloat16", Path(sys.argv[1]))
        for method in METHODS if shape != "100m" else ("none", "das"):
            rows[f"{shape} {method}"] = row(policy, method)
    print("ROWS" + json.dumps(rows))
    os._exit(0)


if __name__ == "__main__":
    main()
