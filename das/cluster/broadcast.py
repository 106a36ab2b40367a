"""Weights from the trainer's process straight to those of engines: over NCCL between GPUs, over gloo without them.

Ray's object store carries weights through shared memory, and through a copy on every node. A broadcast does not. The
groups are vLLM's own. Each transfer has a group of its own, because engines die, join and leave between transfers.
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from das.cluster.messages import ClusterError, WeightsPart
from das.cluster.weights import split

SENDER = 0  # the trainer's rank; engines follow
WORDS = 2**22  # words of 8 bytes whose check sum is taken at once, which bounds the memory that it takes

Layout = tuple[list[tuple[str, str, list[int]]], int, bool]  # of a WeightsPart: its tensors, bytes, and `drafter`


class TransferBroken(ClusterError):
    """A transfer did not end: somebody died, or was too slow. It can be tried again."""


@dataclass(frozen=True)
class Meeting:
    """Where and as what a process takes part in a transfer."""

    address: str
    port: int
    rank: int
    size: int
    patience_s: float  # the longest that a member waits for the others


def layouts(parts: Sequence[WeightsPart]) -> list[Layout]:
    """What an engine must know of parts that it will receive."""
    return [(part.tensors, part.data.nbytes, part.drafter) for part in parts]


def received(
    meeting: Meeting, expected: Sequence[Layout], device: torch.device
) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Name and value of each tensor that the trainer sends, as it comes, and whether it is the drafter's.

    Raises TransferBroken where the transfer does not end, ClusterError where a part was damaged on the way.
    """
    with _member(meeting, device) as group:
        for tensors, size, drafter in expected:
            data = torch.empty(size, dtype=torch.uint8, device=device)
            theirs = torch.empty(1, dtype=torch.int64, device=device)
            with _may_break():
                group.broadcast(data)
                group.broadcast(theirs)
                intact = bool(check_sum(data) == theirs)
            if not intact:
                raise ClusterError(f"weights were damaged on the way, between {tensors[0][0]} and {tensors[-1][0]}")
            yield from ((name, tensor, drafter) for name, tensor in split(tensors, data))


class Sending:
    """Parts on their way from this process to some engines. A thread sends them; `close` ends it, whatever it does."""

    def __init__(
        self, parts: Sequence[WeightsPart], address: str, engines: int, patience_s: float, device: torch.device
    ) -> None:
        """address: of this process, for the engines. engines: how many. patience_s: as in Meeting."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._door: socket.socket | None = socket.create_server((address, 0), family=family)
        self._place = address, self._door.getsockname()[1], engines + 1, patience_s
        self._parts, self._device = parts, device
        self._group: _Nccl | _Gloo | None = None
        self.error = ""  # why it did not end
        self._thread = threading.Thread(target=self._send, name="weights", daemon=True)
        self._thread.start()

    def meeting(self, rank: int) -> Meeting:
        """What the engine of this rank, 1 or more, must know."""
        address, port, size, patience_s = self._place
        return Meeting(address, port, rank, size, patience_s)

    def _send(self) -> None:
        try:
            with _member(self.meeting(SENDER), self._device, self._door) as self._group:
                for part in self._parts:
                    data = torch.from_numpy(part.data).to(self._device)
                    with _may_break():
                        self._group.broadcast(data)
                        self._group.broadcast(check_sum(data))
                        self._group.wait()
        except TransferBroken as error:
            self.error = str(error)

    def close(self) -> None:
        """End it. Members that wait for something then fail, or wait in vain."""
        group = self._group
        if self._thread.is_alive() and group is not None:
            group.close()
        self._thread.join(timeout=1.0)


def check_sum(data: torch.Tensor) -> torch.Tensor:
    """A number [1], int64, in which every byte of data [bytes], uint8, counts, and where it stands."""
    words = data.new_zeros(-(-data.numel() // 8) * 8)
    words[: data.numel()] = data
    total = torch.zeros(1, dtype=torch.int64, device=data.device)
    odd = 2 * torch.arange(min(WORDS, len(words) // 8), device=data.device) + 1
    for number, some in enumerate(words.view(torch.int64).split(WORDS)):
        # The word at place i counts 2i + 1 times, modulo 2**64.
        total += (some * odd[: len(some)]).sum() + some.sum() * (2 * WORDS * number)
    return total


@contextmanager
def _member(meeting: Meeting, device: torch.device, door: socket.socket | None = None) -> "Iterator[_Nccl | _Gloo]":
    """Meet the others. door: the sender's socket, at which they arrive."""
    with _may_break():
        group = _Nccl(meeting, device, door) if device.type == "cuda" else _Gloo(meeting, door)
    try:
        yield group
    finally:
        group.close()


@contextmanager
def _may_break() -> Iterator[None]:
    """Where others are gone or do not come, torch and NCCL raise RuntimeError, and vLLM OSError, about the door."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise TransferBroken(f"the transfer of weights broke: {str(error).splitlines()[0][:200]}") from error


class _Gloo:
    """A member of a group of processes without GPUs."""

    def __init__(self, meeting: Meeting, door: socket.socket | None) -> None:
        from das.engine.weight_transfer import join

        self._group: Any = join(meeting.address, meeting.port, meeting.rank, meeting.size, door, meeting.patience_s)

    def broadcast(self, data: torch.Tensor) -> None:
        self._group.broadcast(data, SENDER).wait()

    def wait(self) -> None:
        """Everything is sent: broadcasts wait themselves."""

    def close(self) -> None:
        self._group = None  # its connections end, and the others hear it; its own `abort` does nothing


class _Nccl:
    """A member of a group of processes with a GPU each."""

    def __init__(self, meeting: Meeting, device: torch.device, door: socket.socket | None) -> None:
        from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

        torch.accelerator.set_device_index(device.index)  # of this thread
        if door is not None:
            door.close()  # vLLM opens one of its own at this port
        self._group = stateless_init_process_group(meeting.address, meeting.port, meeting.rank, meeting.size, device)
        if self._group.disabled:
            raise ClusterError("vLLM finds no NCCL here, over which weights would go: set cluster.weights=store")

    def broadcast(self, data: torch.Tensor) -> None:
        self._group.broadcast(data, SENDER)

    def wait(self) -> None:
        """Until the GPU has sent everything."""
        torch.accelerator.synchronize()

    def close(self) -> None:
        self._group.destroy()
