"""A process of a run: its environment, which the harness sets, unlike the library; and its place among those that train
together."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from das.engine.versions import silence_known
from das.general import ranks


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


def join() -> None:
    """Create the process group (NCCL with GPUs, else gloo). TRL finds and uses it. Ranks wait in it for the slowest
    rank's rollout, and for the main rank while it makes the policy."""
    if ranks.count() > 1:
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available(), timeout=ranks.PATIENCE)


@contextmanager
def main_first() -> Iterator[None]:
    """Run the `with` block on the main process first, then on the others, which find the main process's files.

    If the main process fails, it prints the reason, and the others exit silently.
    """
    if not ranks.is_main():
        try:
            ranks.gather(None)
        except RuntimeError:  # the main process has gone
            sys.exit(1)
    yield
    if ranks.count() > 1 and ranks.is_main():
        ranks.gather(None)
