"""The batch of a pass as verification sees it, what drafters remember of it, and copies from the host to the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from das.drafter.distributions import PAIRS

GREEDY_BELOW = 1e-5  # temperature below which a request takes the argmax; vLLM uses the same threshold


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


@dataclass(frozen=True, slots=True)
class Remembered:
    """The distributions from which a piece of a pass was sampled. A GPU may still be copying them: read them when the
    pass's tokens are on the host."""

    pairs: np.ndarray  # the distribution of each row of logits (das.drafter.distributions), uint32 [rows, PAIRS]
    num_drafted: np.ndarray  # of each request, whose rows are one more and lie together, int64 [requests]


def of_one_pass(pieces: Sequence[Remembered]) -> Remembered:
    """Returns the pieces of a pass as one."""
    if len(pieces) == 1:
        return pieces[0]
    return Remembered(*(np.concatenate([getattr(one, name) for one in pieces]) for name in ("pairs", "num_drafted")))


def of_passes_alike(passes: Sequence[Sequence[Remembered]]) -> list[Remembered]:
    """Returns what passes of the same requests without drafts remembered as if one pass had emitted all their tokens.
    passes: the pieces of each. [] if nothing was remembered."""
    if not all(passes):
        return []
    pairs = np.stack([of_one_pass(pieces).pairs for pieces in passes], axis=1)
    return [Remembered(pairs.reshape(-1, PAIRS), np.full(len(pairs), len(passes) - 1))]


def remembered_of(pieces: Sequence[Remembered], rows: Sequence[int], counts: Sequence[int]) -> np.ndarray | None:
    """Returns the distributions from which emitted tokens were sampled, uint32 [sum(counts), PAIRS]: for each i, those
    of the first counts[i] tokens that row rows[i] of the batch emitted. None if no distributions were kept."""
    if not pieces:
        return None
    one, emitted = of_one_pass(pieces), np.asarray(counts)
    first = (np.cumsum(one.num_drafted + 1) - (one.num_drafted + 1))[np.asarray(rows)]
    before = np.cumsum(emitted) - emitted
    return one.pairs[np.repeat(first - before, emitted) + np.arange(int(emitted.sum()))]


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
