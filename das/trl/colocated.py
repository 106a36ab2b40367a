"""An engine in the trainer's own process needs groups of ranks, sleep mode, and random states that stay as they are."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from das.errors import EngineError


def tensor_parallel_group(size: int, num_processes: int) -> Any:
    """The group of the `size` ranks that share this rank's engine. All ranks must call it, as TRL does.

    Raises EngineError where the ranks cannot be divided into such groups.
    """
    if num_processes % size:
        raise EngineError(
            f"vllm_tensor_parallel_size={size}: launch a multiple of {size} processes, not {num_processes}"
        )
    own, _ = torch.distributed.new_subgroups(size)
    return own


def require_sleep_mode() -> None:
    """Raise EngineError, in one line, on a device where vLLM has no sleep mode."""
    from vllm.platforms import current_platform

    if not current_platform.is_sleep_mode_available():
        raise EngineError(
            f"vllm_enable_sleep_mode=True: vLLM has no sleep mode on a {current_platform.device_name}; set it to False"
        )


def gpu_capability() -> int | None:
    """Compute capability of this process's GPU, such as 90; None without one."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Put the random states of Python, NumPy and torch back at the end."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
