"""`das.install()`: the one function that patches vLLM in a process, and the environment that engines are built in."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from das.engine.engine_config import BITS, check_exact
from das.engine.known_warnings import silence_known
from das.engine.one_json import take_one_json
from das.engine.patches.front_end import patch_front_end
from das.engine.patches.gpu import tune_matmuls

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


def install(exact: str | None = None) -> None:
    """Prepare this process for engines of das: patch vLLM's front end, and silence what libraries say at each start.

    Call it before `LLM(**das.engine_arguments())`. `das.speculate()` calls it itself. It changes no thread count, no
    engine that does not ask for das (das/engine/patches/) and, but for `exact`, no environment variable.
    Processes that nobody prepared, such as those of `vllm serve`, need das's vLLM plug-in (das/engine/plugin.py), which
    pip installs with das.

    exact: "bits" turns on vLLM's batch-invariant kernels on a GPU, by the environment variables INVARIANT, for all
    engines of this process until `uninstall()`; "distribution" or None leaves them as they are (docs/exactness.md).
    Raises UnsupportedVersion when vLLM is too old for the patches, ValueError for another `exact`.
    """
    check_exact(exact)
    silence_known()
    if exact == BITS and torch.cuda.is_available():
        for name, value in INVARIANT.items():
            if name not in os.environ:
                _set.append(name)
                os.environ[name] = value
    patch_front_end()
    take_one_json()
    if os.environ.get("VLLM_BATCH_INVARIANT") == "1":
        tune_matmuls()


def uninstall() -> None:
    """Remove the environment variables that `install` has set."""
    while _set:
        os.environ.pop(_set.pop(), None)
