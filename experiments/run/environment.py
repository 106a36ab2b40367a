"""The environment of a run's processes: what the harness, unlike the library, sets for all of a process."""

import os

import torch

from das.engine.versions import silence_known


def set_environment(threads: int | None = 1) -> None:
    """Set torch's threads, and environment variables that vLLM and other libraries read; those that are set keep their
    values. Call it before vLLM is imported.

    threads: of torch and the engine's kernels; None: those that torch has.
    """
    silence_known()
    if threads is not None:
        torch.set_num_threads(threads)  # torch is loaded already, so it no longer reads OMP_NUM_THREADS
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        # Numba refuses another number once its threads run, and vLLM's ngram drafter compiles amid rollouts, too.
        os.environ.setdefault("NUMBA_NUM_THREADS", str(threads))
    for name, value in {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        os.environ.setdefault(name, value)
