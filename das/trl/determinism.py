"""Make a training give the same bits each time (exactness level 3, docs/exactness.md): set algorithms, restore random
states."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def train_deterministically() -> None:
    """From now on torch takes deterministic algorithms where it has some, and warns where it has none.

    Call this before the first matrix product on a GPU, at which cuBLAS reads its environment variable. Training gets
    slower.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Otherwise torch would fill new tensors that are overwritten anyway.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def algorithms_of_the_engine() -> Iterator[None]:
    """Inside the `with` block, torch takes its fastest algorithms. Engine code is deterministic where it must be."""
    asked = torch.are_deterministic_algorithms_enabled()
    only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(asked, warn_only=only_warn)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """At the end of the `with` block, restore the random states of Python, NumPy and torch (of this process's GPU)."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def undisturbed(trainer: Any) -> None:
    """Let the evaluations and predictions of this trainer leave its training as it is. TRL draws the order of
    micro-batches from the global generator, which an evaluation would advance."""
    for name in ("evaluate", "predict"):
        setattr(trainer, name, random_states_kept()(getattr(trainer, name)))
