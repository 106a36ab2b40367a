"""Environment variables of vLLM that das sets: for the time in which an engine is built, or until das is off."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

# Environment variables for vLLM's batch-invariant kernels, which all engines of a process then use.
INVARIANT = {
    "VLLM_BATCH_INVARIANT": "1",
    # vLLM then also replaces torch's batched product in the trainer, by a Triton kernel. In Triton's default TF32 a
    # rotary embedding's angle would be wrong by .45 rad at position 1,000.
    "TRITON_F32_DEFAULT": "ieee",
}
_set: list[str] = []  # variables that this module has set for good


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Inside the `with` block, these environment variables have these values. Afterwards they are as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def in_this_process() -> dict[str, str]:
    """Returns the environment variables with which vLLM builds an engine in this process, where TRL needs it."""
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # vLLM's ngram drafter runs on numba, which gives this number to OpenMP, and so to torch's kernels. With more
        # threads than in other engines, the kernels would sum in another order.
        "NUMBA_NUM_THREADS": str(torch.get_num_threads()),
    }


def turn_invariant() -> None:
    """Let all engines of this process use vLLM's batch-invariant kernels, until `forget`. What is set already stays."""
    for name, value in INVARIANT.items():
        if name not in os.environ:
            _set.append(name)
            os.environ[name] = value


def forget() -> None:
    """Remove the variables that `turn_invariant` has set."""
    while _set:
        os.environ.pop(_set.pop(), None)


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
