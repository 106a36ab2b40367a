"""Sends weights from the trainer's process straight to engines' processes: over NCCL between GPUs, else over gloo.

Ray's object store carries weights through shared memory, and through a copy on every node. A broadcast needs neither.
The groups are vLLM's. Each transfer has a group of its own, because engines die, join and leave between transfers.
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from das.cluster.messages import ClusterError, WeightsPart
from das.cluster.weights import split

SENDER = 0  # the trainer's rank; engines follow
WORDS = 2**22  # a check sum is computed over this many words of 8 bytes at once, to bound its memory

Layout = tuple[list[tuple[str, str, list[int]]], int, bool]  # a WeightsPart without data: tensors, bytes, `drafter`


class TransferBroken(ClusterError):
    """A transfer did not end, because a process died or was too slow. The transfer can be tried again."""


@dataclass(frozen=True)
class Meeting:
    """The address of a transfer, and the rank of one process in it."""

    address: str
    port: int
    rank: int
    size: int
    patience_s: float  # the longest that a member waits for the others


def sender(how: str | None, device: torch.device | None, gpus: bool) -> torch.device | None:
    """Returns the device from which the trainer's process broadcasts weights; None: weights go as arguments of calls.

    how: ClusterSettings.weights. device: the trainer's device; None: it sends no weights. gpus: whether engines have
    GPUs. Raises ClusterError if the asked-for broadcast is not possible.
    """
    if device is None or how == "store":
        return None
    if not gpus:
        return torch.device("cpu") if how == "broadcast" else None
    if device.type == "cuda":
        return device
    if how == "broadcast":
        raise ClusterError(
            "cluster.weights=broadcast: engines have GPUs and the trainer has none, so they share no network for "
            "weights; set cluster.weights=store"
        )
    return None


def layouts(parts: Sequence[WeightsPart]) -> list[Layout]:
    """Returns the layouts of these parts (names, types and shapes without data). An engine needs them to receive the
    parts."""
    return [(part.tensors, part.data.nbytes, part.drafter) for part in parts]


def received(
    meeting: Meeting, expected: Sequence[Layout], device: torch.device
) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Receive a broadcast of the trainer. Yields each tensor when it has come: its name, its value, and whether it
    belongs to the drafter.

    Raises TransferBroken if the transfer does not end, ClusterError if a part was damaged on the way.
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
        with _may_break():
            group.finish()


class Sending:
    """A transfer of weights from this process to some engines. A thread sends them."""

    def __init__(
        self, parts: Sequence[WeightsPart], address: str, engines: int, patience_s: float, device: torch.device
    ) -> None:
        """address: the address at which engines reach this process. engines: their number. patience_s: see Meeting."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._door = socket.create_server((address, 0), family=family)
        self._place = address, self._door.getsockname()[1], engines + 1, patience_s
        self._parts, self._device = parts, device
        self._group: _Nccl | _Gloo | None = None  # set once all members have met
        self.broken = ""  # why the transfer did not end, if a further one may succeed; else empty
        self.failed = ""  # why the transfer did not end, if this process cannot send; else empty
        self._thread = threading.Thread(target=self._send, name="weights", daemon=True)
        self._thread.start()

    def meeting(self, rank: int) -> Meeting:
        """Returns the Meeting for the member of this rank. Engines have ranks of 1 and more."""
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
                with _may_break():
                    self._group.finish()
        except TransferBroken as error:
            self.broken = str(error)
        except Exception as error:  # the main thread raises it
            self.failed = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

    def close(self) -> None:
        """End the transfer. Between GPUs it ends at once. Without GPUs, or while members still wait for each other, it
        ends after `patience_s` seconds at the latest.
        """
        if self._thread.is_alive() and self._group is not None:
            self._group.close()
        self._thread.join(timeout=1.0)


def check_sum(data: torch.Tensor) -> torch.Tensor:
    """Returns a check sum, int64 [1], of data, uint8 [bytes]. It depends on every byte and on the byte's place."""
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
    """Join the processes that take part in a transfer. door: the sender's socket, to which the others connect."""
    with _may_break():
        group = _Nccl(meeting, device, door) if device.type == "cuda" else _Gloo(meeting, door)
    try:
        yield group
    finally:
        group.close()


@contextmanager
def _may_break() -> Iterator[None]:
    """Inside the `with` block, RuntimeError and OSError become TransferBroken. If a member is gone or does not come,
    torch and NCCL raise RuntimeError, and vLLM raises OSError.
    """
    try:
        yield
    except ClusterError:
        raise
    except (RuntimeError, OSError) as error:
        raise TransferBroken(f"the transfer of weights broke: {str(error).splitlines()[0][:200]}") from error


class _Gloo:
    """This process's membership in a gloo group, whose members have no GPUs."""

    def __init__(self, meeting: Meeting, door: socket.socket | None) -> None:
        from das.weights.gloo_transfer import join

        self._group: Any = join(meeting.address, meeting.port, meeting.rank, meeting.size, door, meeting.patience_s)

    def _open(self) -> Any:
        if self._group is None:
            raise TransferBroken("the transfer of weights broke: it was closed")
        return self._group

    def broadcast(self, data: torch.Tensor) -> None:
        self._open().broadcast(data, SENDER).wait()

    def finish(self) -> None:
        """Wait until all members have everything."""
        self._open().barrier().wait()

    def close(self) -> None:
        self._group = None  # this ends its connections, which the others notice; the group's own `abort` does nothing


class _Nccl:
    """This process's membership in an NCCL group, whose members have one GPU each."""

    def __init__(self, meeting: Meeting, device: torch.device, door: socket.socket | None) -> None:
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup
        from vllm.utils import nccl

        torch.accelerator.set_device_index(device.index)  # for this thread
        self._patience_s = meeting.patience_s
        self._members = StatelessProcessGroup.create(
            meeting.address,
            meeting.port,
            meeting.rank,
            meeting.size,
            store_timeout=max(1, int(meeting.patience_s)),
            listen_socket=door,
        )
        # Batch invariance pins NCCL's settings in an engine, and all members must have the same. vLLM 0.26 pins none.
        with getattr(nccl, "unpinned_nccl_env", nullcontext)():
            self._group = PyNcclCommunicator(self._members, device)
        self._lock = threading.Lock()
        self._closed = False
        if self._group.disabled:
            raise ClusterError("vLLM finds no NCCL here, over which weights would go: set cluster.weights=store")

    def broadcast(self, data: torch.Tensor) -> None:
        if self._closed:
            raise TransferBroken("the transfer of weights broke: it was closed")
        self._group.broadcast(data, SENDER)

    def finish(self) -> None:
        """Wait until all members have everything. Without this wait, `close` may lose data that is under way."""
        torch.accelerator.synchronize()
        if self._closed:
            raise TransferBroken("the transfer of weights broke: it was closed")
        self._members.barrier(timeout=self._patience_s)

    def close(self) -> None:
        """Leave the group. Any thread may call it, and a second call does nothing."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._group.destroy()
