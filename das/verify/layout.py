"""The batch of a pass as verification sees it, and copies from the host to the device."""

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
