"""Build a vLLM engine for an arm: keyed verification for all, drafts as the arm says."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from das.budget import DEFAULT_BUDGET, make_budget
from das.drafter import HistoryDrafter
from das.engine import patches

if TYPE_CHECKING:
    from vllm import LLM


class EngineError(RuntimeError):
    """An engine cannot be built as asked; the message says what to change."""


@dataclass(frozen=True)
class EngineSettings:
    """What an engine needs to know. Sizes in tokens unless said otherwise."""

    model: str  # directory or hub id
    method: str = "none"  # drafts by: none | das | ngram | suffix
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 32  # slots: requests that decode at once
    max_num_batched_tokens: int = 4096
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    enforce_eager: bool = True
    gpu_memory_utilization: float = 0.1  # fraction of device memory (of host memory on the CPU)
    tensor_parallel_size: int = 1
    batch_invariant: bool = False  # vLLM's batch-invariant kernels (GPU)
    seed: int = 0
    drafter: Mapping[str, Any] = field(default_factory=dict)  # options of HistoryDrafter that differ from its defaults
    budget: Mapping[str, Any] = field(default_factory=lambda: DEFAULT_BUDGET)  # name and options of the budget policy
    speculative: Mapping[str, Any] = field(default_factory=dict)  # further settings of vLLM's own methods
    extra: Mapping[str, Any] = field(default_factory=dict)  # further arguments of vllm.LLM, as they are


def prepare_environment(kv_cache_gib: int = 1, threads: int | None = None, batch_invariant: bool = False) -> None:
    """Set what vLLM reads from the environment; call it before an engine is built. Values the user set are kept.

    threads: of torch and of the engine's kernels on the CPU; None: OMP_NUM_THREADS, 1 where that is not set.
    """
    if threads is None:
        threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)  # torch is loaded already: OMP_NUM_THREADS comes too late for it
    defaults = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process, beside the trainer
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the default binding fights with other busy processes for a core
        "VLLM_CPU_ATTN_SPLIT_KV": "0",  # splitting a sequence's keys by load would make sums depend on the batch
        "OMP_NUM_THREADS": str(threads),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second runner (GPU default) samples where no hook of ours reaches
        "TOKENIZERS_PARALLELISM": "false",
    }
    if batch_invariant:
        defaults["VLLM_BATCH_INVARIANT"] = "1"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def speculative_config(settings: EngineSettings) -> dict[str, Any] | None:
    """vLLM's speculative_config for the arm. Raises EngineError for an unknown method or a missing package."""
    match settings.method:
        case "none":
            return None
        case "das":
            longest = make_budget(settings.budget).max_draft_tokens
            return {
                "method": "custom_class",
                "model": "das.engine.proposer.DasProposer",
                "num_speculative_tokens": longest,
            }
        case "ngram":
            return {"method": "ngram", **settings.speculative}
        case "suffix":
            if find_spec("arctic_inference") is None:
                raise EngineError("arm suffix needs arctic-inference, which is not installed: run `make peers`")
            return {"method": "suffix", **settings.speculative}
        case other:
            raise EngineError(f"unknown speculation method {other!r}: choose none, das, ngram or suffix")


def engine_arguments(
    method: str = "das",
    drafter: Mapping[str, Any] | None = None,
    budget: Mapping[str, Any] = DEFAULT_BUDGET,
    speculative: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments that make a vllm.LLM keyed and, as `method` says, drafting: `LLM(model, **engine_arguments())`.

    They mean what they mean in EngineSettings. Sets the environment and installs the patches.
    Raises EngineError for an unknown method or a missing package, ValueError or TypeError for a bad drafter or budget.
    """
    drafter = drafter or {}
    settings = EngineSettings(model="", method=method, drafter=drafter, budget=budget, speculative=speculative or {})
    HistoryDrafter(**drafter)  # refused here, before anything is built
    prepare_environment()
    patches.apply()
    return _arguments(settings)


def _arguments(settings: EngineSettings) -> dict[str, Any]:
    return {
        "async_scheduling": False,  # vLLM turns it off for drafts; arms must differ in the drafts alone
        "logprobs_mode": "processed_logprobs",  # what TRL's importance-sampling correction expects
        "speculative_config": speculative_config(settings),
        "worker_extension_cls": "das.engine.worker.DasWorker",
        "additional_config": {"das": {"drafter": dict(settings.drafter), "budget": dict(settings.budget)}},
    }


def build_engine(settings: EngineSettings, **overrides: Any) -> "LLM":
    """Build the engine. `overrides` are further arguments of vllm.LLM.

    Raises EngineError when the model directory lacks a tokenizer or vLLM refuses the settings.
    """
    local = Path(settings.model)
    if local.is_dir() and not (local / "tokenizer_config.json").exists():
        raise EngineError(f"policy directory {local} has no tokenizer (tokenizer_config.json): save it there too")
    keyed = _arguments(settings)
    patches.apply()
    from vllm import LLM

    arguments: dict[str, Any] = {
        "model": settings.model,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "enable_chunked_prefill": settings.enable_chunked_prefill,
        "enforce_eager": settings.enforce_eager,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "seed": settings.seed,
        **keyed,
    }
    try:
        return LLM(**arguments | dict(settings.extra) | overrides)
    except ValueError as error:  # of vLLM's own checks
        raise EngineError(f"vLLM refuses the engine: {' '.join(str(error).split())[:400]}") from error
