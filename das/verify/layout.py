"""The rows of logits of a pass: the batch as verification sees it, each row's request and position, and copies between
host and device."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch


@dataclass
class Batch:
    """The requests of a pass, one in each row, with what verification and drafting read of vLLM's arrays.

    requests: das.engine.requests.Request. rows: their indices in vLLM's arrays, int64 [requests]. prompts, lengths:
    tokens of the prompt, and of prompt and response, int64 [requests]. temperatures: float32 [requests]. seeds: int64
    [requests].
    """

    requests: Sequence[Any]
    rows: np.ndarray
    prompts: np.ndarray
    lengths: np.ndarray
    temperatures: np.ndarray
    seeds: np.ndarray

    @classmethod
    def of(cls, vllm: Any, requests: Sequence[Any], rows: np.ndarray, positions: np.ndarray) -> Self:
        """Read vLLM's arrays. vllm: its model runner. positions: the tokens of each response so far, by the indices of
        vLLM's arrays."""
        states, prompts = vllm.sampler.sampling_states, vllm.req_states.prompt_len.np[rows].astype(np.int64)
        lengths = prompts + positions[rows]
        return cls(requests, rows, prompts, lengths, states.temperature.np[rows], states.seeds.np[rows])


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
