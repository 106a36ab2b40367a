"""The rows of logits of a pass: the batch as verification sees it, each row's request and position, and copies between
host and device."""

import functools
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch


class RunningBatch(Protocol):
    """The part of a model runner that verification needs: its requests, and the requests of the running pass."""

    input_batch: Any  # the requests of the pass, one in each row (das.engine.runner.requests.Batch)
    # True for each row whose prompt is unfinished after the pass, so that its sampled token is discarded; bool [rows]
    unfinished: np.ndarray

    @property
    def requests(self) -> Mapping[str, Any]:
        """Each request that the runner knows, by request id (das.engine.runner.requests.KnownRequest)."""

    def seeds_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the seeds of some rows of the batch, for drafters that are models. Both arrays int64 [rows]."""

    def processed(self, logits: torch.Tensor, rows: np.ndarray, num_drafted: np.ndarray) -> torch.Tensor:
        """Returns logits of a drafter after each request's sampling parameters were applied, as they are to the
        verifier's. logits: float32 [rows, vocab], changed in place. rows: of the batch, int64 [rows]. num_drafted:
        tokens that are drafted before each, int64 [rows]."""


class Layout:
    """The rows of logits in a pass. A request's rows lie together: one for its next token, then one after each of its
    drafted tokens.

    num_drafted: of each request, int64 [requests].
    """

    def __init__(self, num_drafted: np.ndarray):
        self.num_drafted = num_drafted

    @functools.cached_property
    def owner(self) -> np.ndarray:
        """For each row, the index of its request, int64 [rows]."""
        return np.repeat(np.arange(len(self.num_drafted)), self.num_drafted + 1)

    @functools.cached_property
    def first_row(self) -> np.ndarray:
        """Index of each request's first row, int64 [requests]."""
        return np.cumsum(self.num_drafted + 1) - (self.num_drafted + 1)

    @functools.cached_property
    def offset(self) -> np.ndarray:
        """Number of drafted tokens that lead to each row, int64 [rows]."""
        offset: np.ndarray = np.arange(len(self.owner)) - self.first_row[self.owner]
        return offset


def on_device(device: torch.device, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Returns the arrays as tensors on `device`, int32 or float32, with the same names and shapes.

    arrays: name -> array; integers must fit into 32 bits. On the CPU the tensors share the arrays' memory where they
    can.
    """
    narrow = {
        name: np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else np.int32)
        for name, array in arrays.items()
    }
    if device.type == "cpu":
        return {name: torch.from_numpy(array) for name, array in narrow.items()}
    staged = torch.empty(
        sum(array.size for array in narrow.values()), dtype=torch.int32, pin_memory=device.type == "cuda"
    )
    np.concatenate([array.reshape(-1).view(np.int32) for array in narrow.values()], out=staged.numpy())
    parts = staged.to(device, non_blocking=True).split([array.size for array in narrow.values()])
    return {
        name: (part.view(torch.float32) if array.dtype == np.float32 else part).view(array.shape)
        for (name, array), part in zip(narrow.items(), parts, strict=True)
    }
