"""`das.install()`: the one function that patches vLLM and sets the environment variables that vLLM reads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from das.engine.engine_config import BITS, check_exact
from das.engine.known_warnings import silence_known
from das.engine.one_json import take_one_json
from das.engine.patches.front_end import patch_front_end
from das.engine.patches.gpu import tune_matmuls


def set_environment(kv_cache_gib: int = 1, threads: int | None = None, batch_invariant: bool = False) -> None:
    """Set the environment variables that vLLM reads, and torch's threads. Variables that are already set keep their
    values. Call it before an engine is built.

    kv_cache_gib: size of the KV cache on the CPU. threads: number for torch and the engine's kernels on the CPU; None:
    OMP_NUM_THREADS, or 1 if that is not set. batch_invariant: use vLLM's batch-invariant kernels (GPU), which no
    engine of vLLM as it comes does.
    """
    silence_known()
    if threads is None:
        threads = int((os.environ.get("OMP_NUM_THREADS") or "1").split(",")[0])  # "4,2" nests: the first level counts
    torch.set_num_threads(threads)  # torch is loaded already, so it no longer reads OMP_NUM_THREADS
    defaults = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs beside the trainer; TRL needs it there
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the default binding fights with other busy processes for a core
        "OMP_NUM_THREADS": str(threads),
        # vLLM's ngram drafter runs on numba, which gives this number to OpenMP, and so to torch's kernels. With more
        # threads than in other engines, the kernels would sum in another order.
        "NUMBA_NUM_THREADS": str(threads),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if batch_invariant:
        defaults["VLLM_BATCH_INVARIANT"] = "1"
        # vLLM then also replaces torch's batched product in the trainer, by a Triton kernel. In Triton's default TF32
        # a rotary embedding's angle would be wrong by .45 rad at position 1,000.
        defaults["TRITON_F32_DEFAULT"] = "ieee"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextmanager
def nccl_variables_kept() -> Iterator[None]:
    """After the `with` block, restore NCCL's environment variables.

    An engine with batch-invariant kernels pins NCCL to one channel, so that sums have one order. A trainer in the same
    process would be pinned too, though its sums need not match the engine's.
    """
    before = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("NCCL_") and name not in before]:
            del os.environ[name]
        os.environ.update(before)


def install(kv_cache_gib: int = 1, threads: int | None = None, exact: str | None = None) -> None:
    """Prepare this process for engines of das: set environment variables, set torch's threads, patch the front end.

    Call it before `LLM(**das.engine_arguments())`. `das.speculate()` calls it itself. A second call keeps
    the variables that are set and sets torch's threads again.
    The environment variables hold for every engine that this process builds: the engine runs in this process, and logs
    warnings only. das/engine/install.py lists the variables; those that are already set keep their values. All
    other changes affect only engines that ask for das (das/engine/patches/).
    Processes that nobody prepared, such as those of `vllm serve`, need das's vLLM plug-in (das/engine/plugin.py), which
    pip installs with das.

    kv_cache_gib: size of the KV cache on the CPU. threads: number for torch and the engine's kernels on the CPU; None:
    OMP_NUM_THREADS, or 1 if that is not set. exact: "bits" turns on vLLM's batch-invariant kernels on a GPU, for all
    engines of this process; "distribution" or None leaves them as they are (docs/exactness.md).
    Raises UnsupportedVersion when vLLM is too old for the patches, ValueError for another `exact`.
    """
    check_exact(exact)
    set_environment(kv_cache_gib, threads, batch_invariant=exact == BITS and torch.cuda.is_available())
    patch_front_end()
    take_one_json()
    if os.environ.get("VLLM_BATCH_INVARIANT") == "1":
        tune_matmuls()
