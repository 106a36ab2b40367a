"""An engine of several ranks: its first rank drafts for all, and its shared memory is its own. No engine is built."""

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

from das.engine import worker
from das.engine.patches.cpu import own_shared_memory
from das.engine.proposer import DasProposer
from das.engine.worker import DasWorker


class Group:
    """The ranks of an engine; this is one of them. `sent` is what the first rank broadcasts."""

    sent: Any = None

    def __init__(self, rank: int):
        self.is_first_rank = rank == 0

    def broadcast_object(self, value: Any) -> Any:
        if self.is_first_rank:
            Group.sent = value
        return Group.sent


def test_the_first_rank_alone_writes_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks get the call, with one path. The others do not draft, and their history is empty."""
    written = []
    for rank in (0, 1):
        made: Any = DasWorker.__new__(DasWorker)
        drafter: Any = DasProposer.__new__(DasProposer)
        save = functools.partial(lambda rank, path: written.append((rank, path)), rank)
        drafter.draft_round = SimpleNamespace(drafter=SimpleNamespace(save=save))
        made.das_runner = SimpleNamespace(flights=SimpleNamespace(proposer=drafter))
        monkeypatch.setattr(worker, "get_tp_group", lambda rank=rank: Group(rank))
        made.das_save_history("history.npz")
    assert written == [(0, Path("history.npz"))]


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
