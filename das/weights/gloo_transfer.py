"""Send weights from a trainer to a server's workers, without GPUs: the backend `das_gloo` of vLLM's weight transfer.

vLLM's own backends need CUDA. Start the server with `--weight-transfer-config '{"backend": "das_gloo"}'`.
"""

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

TRAINER = 0  # the trainer's rank; the workers have the ranks behind it
PATIENCE_S = 120  # the longest that anyone waits for another to join, to send a tensor, or to receive it


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """The place where trainer and workers meet. The fields are those of vLLM's NCCL backend."""

    master_address: str
    master_port: int
    rank_offset: int  # the first worker's rank
    world_size: int  # the trainer and all workers


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """The tensors that the trainer is about to send, in order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


def join(
    address: str,
    port: int,
    rank: int,
    world_size: int,
    door: socket.socket | None = None,
    patience_s: float = PATIENCE_S,
) -> Any:
    """Join the group of the trainer and the workers. It blocks until all have joined.

    door: the trainer's socket, which listens at `port`. patience_s: the longest that anyone waits for another.
    """
    return stateless_init_torch_distributed_process_group(
        address, port, rank, world_size, "gloo", listen_socket=door, timeout=timedelta(seconds=patience_s)
    )


class GlooWeightTransfer(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):
    """The worker's side of the transfer: loads each tensor when it arrives."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Join the trainer's gloo group. If another trainer calls later, its group replaces this one."""
        parallel = self.parallel_config
        worker = parallel.data_parallel_index * parallel.world_size + parallel.rank
        rank = init_info.rank_offset + worker
        self.group = join(init_info.master_address, init_info.master_port, rank, init_info.world_size)

    def start_weight_update(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive and load the weights. vLLM's own method also waits for an accelerator, and there is none."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Receive the tensors one by one, and load each into the model."""
        for name, dtype_name, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype_name))
            self.group.broadcast(tensor, TRAINER).wait()
            self.model.load_weights([(name, tensor)])

    def finish_weight_update(self) -> None:
        """Do nothing: the worker packs the weights before its next pass."""

    def shutdown(self) -> None:
        """Leave the group."""
        self.group = None
