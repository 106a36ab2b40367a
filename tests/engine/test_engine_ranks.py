"""The shared memory of an engine of several ranks is its own. What else ranks do: test_tensor_parallel.py."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

from das.engine.patches.cpu import own_shared_memory


def test_every_launch_has_shared_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's name for it is the same in all launches, and a launch that was killed leaves its memory behind."""
    monkeypatch.setenv("VLLM_DIST_IDENT", "//")  # as vLLM sets it under torchrun
    communicator: Any = SimpleNamespace(unique_name="tp:0", ranks=[0, 1])

    def name(world_size: int = 2) -> str:
        config = SimpleNamespace(parallel_config=SimpleNamespace(world_size=world_size))
        with own_shared_memory(config):
            return _CPUSHMDistributed.make_group_name(communicator)

    stock = _CPUSHMDistributed.make_group_name(communicator)
    assert name(world_size=1) == stock
    names = [name(), name()]  # of two engines
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert len({*names, name(), stock}) == 4
    assert "/" not in names[0]
    assert _CPUSHMDistributed.make_group_name(communicator) == stock
