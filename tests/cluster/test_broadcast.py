"""Weights that are broadcast arrive bit for bit, or every member of the transfer hears that they did not."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from das.cluster import broadcast
from das.cluster.broadcast import Meeting, Sending, TransferBroken, check_sum, layouts, received
from das.cluster.messages import ClusterError
from das.cluster.weights import packed

CPU = torch.device("cpu")
PATIENCE_S = 20.0
TENSORS = {
    "a": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
    "b": torch.tensor([1.5, float("nan"), -0.0], dtype=torch.bfloat16),  # of 6 bytes: what follows begins at no word
    "c": torch.randn(1000, generator=torch.Generator().manual_seed(1)),
    "d": torch.arange(7),
}


def transfer(engines: int, patience_s: float = PATIENCE_S) -> tuple[Sending, list[Callable[[], Any]]]:
    """A transfer that has begun, and what each engine would call to receive it."""
    parts = [*packed(list(TENSORS.items())[:3]), *packed(list(TENSORS.items())[3:], drafter=True)]
    sending = Sending(parts, "127.0.0.1", engines, patience_s, CPU)
    expected = layouts(parts)
    return sending, [lambda rank=rank: received(sending.meeting(rank), expected, CPU) for rank in range(1, engines + 1)]


def together(*calls: Callable[[], Any]) -> list[Future[Any]]:
    with ThreadPoolExecutor(len(calls)) as executor:
        return [executor.submit(call) for call in calls]


def test_all_engines_receive_every_bit() -> None:
    sending, engines = transfer(2)
    for future in together(*(lambda engine=engine: list(engine()) for engine in engines)):
        found = future.result()
        assert [(name, of_drafter) for name, _, of_drafter in found] == [
            ("a", False),
            ("b", False),
            ("c", False),
            ("d", True),
        ]
        for name, tensor, _ in found:
            assert tensor.dtype == TENSORS[name].dtype
            assert tensor.shape == TENSORS[name].shape
            assert torch.equal(tensor.view(torch.uint8), TENSORS[name].view(torch.uint8))
    sending.close()
    assert not sending.broken


def test_an_engine_that_goes_away_breaks_the_transfer_for_all() -> None:
    sending, (leaving, staying) = transfer(2)

    def leave() -> None:
        first = leaving()
        next(first)
        first.close()

    began = time.monotonic()
    gone, left = together(leave, lambda: list(staying()))
    sending.close()
    gone.result()
    try:
        assert len(left.result()) == len(TENSORS)  # all was on its way already
    except TransferBroken:
        assert sending.broken
    assert time.monotonic() - began < PATIENCE_S  # nobody waited for it to come back


def test_the_others_hear_of_an_engine_that_does_not_come() -> None:
    sending, (_, present) = transfer(2, patience_s=2.0)
    with pytest.raises(TransferBroken, match="the transfer of weights broke: "):
        list(present())
    sending._thread.join(PATIENCE_S)
    assert not sending.failed
    assert sending.broken.startswith("the transfer of weights broke: ")


def test_what_was_damaged_on_the_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = check_sum

    def of_the_sender_is_wrong(data: torch.Tensor) -> torch.Tensor:
        return own(data) + (threading.current_thread().name == "weights")

    monkeypatch.setattr(broadcast, "check_sum", of_the_sender_is_wrong)
    sending, (engine,) = transfer(1)
    with pytest.raises(ClusterError, match="weights were damaged on the way, between a and c"):
        list(engine())
    sending.close()


def test_a_trainer_that_cannot_send_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: torch.Tensor) -> torch.Tensor:
        if threading.current_thread().name == "weights":
            raise MemoryError("the device is full")
        return check_sum(data)

    monkeypatch.setattr(broadcast, "check_sum", full)
    sending, (engine,) = transfer(1)
    with pytest.raises(TransferBroken):
        list(engine())
    sending._thread.join(PATIENCE_S)
    assert sending.failed == "MemoryError: the device is full"


def test_a_member_that_was_closed_neither_sends_nor_receives() -> None:
    sending, (engine,) = transfer(1, patience_s=2.0)
    tensors = engine()
    next(tensors)
    assert sending._group is not None
    sending._group.close()
    with pytest.raises(TransferBroken):
        list(tensors)
    sending._thread.join(PATIENCE_S)
    assert sending.broken
    assert not sending.failed


class StandInNccl:
    """As much of vLLM's PyNcclCommunicator as a member calls. There is no GPU here."""

    def __init__(self, group: Any, device: Any) -> None:
        self.disabled, self.aborts, self.sent = not group.barriers, 0, 0

    def broadcast(self, data: torch.Tensor, src: int) -> None:
        self.sent += 1

    def destroy(self) -> None:
        time.sleep(0.1)
        self.aborts += 1


def member_with_gpu(monkeypatch: pytest.MonkeyPatch, has_nccl: bool = True) -> Any:
    barriers: list[float] = []

    def create(*args: Any, **kwargs: Any) -> Any:
        assert args == ("127.0.0.1", 5, 1, 2)
        assert kwargs == {"store_timeout": 30, "listen_socket": None}
        return SimpleNamespace(barriers=has_nccl, barrier=lambda timeout: barriers.append(timeout))

    monkeypatch.setattr("vllm.distributed.utils.StatelessProcessGroup.create", create)
    monkeypatch.setattr("vllm.distributed.device_communicators.pynccl.PyNcclCommunicator", StandInNccl)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    return broadcast._member(Meeting("127.0.0.1", 5, 1, 2, 30.0), torch.device("cuda", 0))


def test_a_member_with_a_gpu_is_closed_once_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with member_with_gpu(monkeypatch) as member:
        member.broadcast(torch.zeros(8))
        member.finish()
        together(member.close, member.close)
    assert (member._group.sent, member._group.aborts) == (1, 1)
    for call in (lambda: member.broadcast(torch.zeros(8)), member.finish):
        with pytest.raises(TransferBroken, match="it was closed"):
            call()


def test_a_machine_without_nccl_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=r"^vLLM finds no NCCL here.*set cluster\.weights=store") as refused:
        member_with_gpu(monkeypatch, has_nccl=False).__enter__()
    assert not isinstance(refused.value, TransferBroken)  # it would be tried again


@pytest.mark.parametrize("size", [0, 1, 8, 13, 4096])
def test_every_byte_counts_and_where_it_stands(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "WORDS", 16)
    data = torch.randint(1, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    sums = {int(check_sum(data))}
    for place in range(min(size, 200)):
        changed = data.clone()
        changed[place] ^= 1
        sums.add(int(check_sum(changed)))
    assert len(sums) == 1 + min(size, 200)
    if size == 4096:
        moved = torch.cat([data[8:16], data[:8], data[16:]]), torch.cat([data[128:], data[:128]])
        assert not {int(check_sum(each)) for each in moved} & sums
