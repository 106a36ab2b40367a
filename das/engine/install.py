"""`das.install()`: the one function that patches vLLM and sets the environment variables that vLLM reads."""

from das.engine.environment import set_environment
from das.engine.patches.front_end import patch_front_end
from das.engine.patches.gpu import tune_matmuls


def install(kv_cache_gib: int = 1, threads: int | None = None, batch_invariant: bool = False) -> None:
    """Prepare this process for engines of das: set environment variables, set torch's threads, patch the front end.

    Call it before `LLM(**das.engine_arguments())`. `das.speculate()` calls it itself. A second call keeps
    the variables that are set and sets torch's threads again.
    The environment variables hold for every engine that this process builds: the engine runs in this process, and logs
    warnings only. das/engine/environment.py lists the variables; those that are already set keep their values. All
    other changes affect only engines that ask for das (das/engine/patches/).
    Processes that nobody prepared, such as those of `vllm serve`, need das's vLLM plug-in (das/engine/plugin.py), which
    pip installs with das.

    kv_cache_gib: size of the KV cache on the CPU. threads: number for torch and the engine's kernels on the CPU; None:
    OMP_NUM_THREADS, or 1 if that is not set. batch_invariant: use vLLM's batch-invariant kernels (GPU).
    Raises UnsupportedVersion when vLLM is too old for the patches.
    """
    set_environment(kv_cache_gib, threads, batch_invariant)
    patch_front_end()
    if batch_invariant:
        tune_matmuls()
