"""`das.install()`: the one function that patches vLLM and sets the environment variables that vLLM reads."""

import os

import torch

from das.engine.engine_config import BITS, check_exact
from das.engine.environment import set_environment
from das.engine.one_json import take_one_json
from das.engine.patches.front_end import patch_front_end
from das.engine.patches.gpu import tune_matmuls


def install(kv_cache_gib: int = 1, threads: int | None = None, exact: str | None = None) -> None:
    """Prepare this process for engines of das: set environment variables, set torch's threads, patch the front end.

    Call it before `LLM(**das.engine_arguments())`. `das.speculate()` calls it itself. A second call keeps
    the variables that are set and sets torch's threads again.
    The environment variables hold for every engine that this process builds: the engine runs in this process, and logs
    warnings only. das/engine/environment.py lists the variables; those that are already set keep their values. All
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
