"""Check that an engine holds the weights that were loaded into it, and computes with them.

vLLM's own `load_weights` knows where a tensor lands: it merges q, k and v, pads vocabularies, cuts slices, converts
types, renames. None of that is repeated here. A tensor is checked by loading it a second time: if it had arrived the
first time, no bit of the engine changes.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from das.weights.weight_check import BITS

PACKED_COLUMNS = 64  # columns of a packed copy that a check reads; reading all would cost more than a training step


def lost_weights(model: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], turn: int = 0) -> str:
    """Returns which of `tensors` did not arrive in the engine's `model`, in words; empty if all of them did.

    tensors: the trainer's tensors in the trainer's type, by the names under which they were loaded. turn: counts the
    checks; each turn reads other columns of the packed copies with which the CPU's linear layers compute.
    """
    touched: set[int] = set()
    for name, tensor in tensors:
        with _Writes(model) as writes:
            model.load_weights([(name, tensor)])  # type: ignore[operator]
        if not writes.before:
            return f"{name} has no place in it"
        if differing := sum(_differing(place, held) for place, held in writes.before.values()):
            return f"{name} differs in {differing:,} of {tensor.numel():,} values"
        touched |= {place.untyped_storage().data_ptr() for place, _ in writes.before.values()}
    for name, layer in model.named_modules():
        if _is_packed(layer) and layer.weight.untyped_storage().data_ptr() in touched and not _repacked(layer, turn):
            return f"{name} computes with an older copy of its weights"
        places = (getattr(layer, weights, None) for weights in ("w13_weight", "w2_weight"))
        of_experts = {place.untyped_storage().data_ptr() for place in places if isinstance(place, torch.Tensor)}
        if hasattr(layer, "das_experts") and of_experts & touched and layer.das_experts.stale():
            return f"{name} computes with an older copy of its experts"
    return ""


class _Writes(TorchDispatchMode):
    """While active, it saves the value of each place in the engine's parameters before the first write to that
    place."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        held = chain(model.parameters(), model.buffers())
        self._storages = {tensor.untyped_storage().data_ptr() for tensor in held if not tensor.is_meta}
        self.before: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}  # by place: (the place, what it held)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            for place in self._of_engine((*args, *(kwargs or {}).values())):
                key = (place.data_ptr(), tuple(place.shape), place.stride())
                if place.numel() and key not in self.before:
                    self.before[key] = place, place.clone()
        return func(*args, **(kwargs or {}))

    def _of_engine(self, arguments: Iterable[Any]) -> Iterator[torch.Tensor]:
        for argument in arguments:
            on_device = isinstance(argument, torch.Tensor) and not argument.is_meta
            if on_device and argument.untyped_storage().data_ptr() in self._storages:
                yield argument


def _differing(now: torch.Tensor, before: torch.Tensor) -> int:
    """Returns how many numbers of the two tensors differ in their bits. A NaN equals a NaN of the same bits."""
    bits = BITS[now.element_size()]
    bits_now, bits_before = now.detach().contiguous().view(bits), before.detach().contiguous().view(bits)
    return 0 if torch.equal(bits_now, bits_before) else int((bits_now != bits_before).sum())


def _is_packed(layer: torch.nn.Module) -> bool:
    """Returns whether the layer computes with a copy of its weights that was packed for the CPU."""
    return hasattr(layer, "cpu_linear") and isinstance(layer.weight, torch.Tensor) and layer.weight.ndim == 2


def _repacked(layer: Any, turn: int) -> bool:
    """Returns whether the packed copy equals the layer's weights, in those columns that this `turn` reads.

    The layer's output for a unit vector is exactly a column of the copy, because all other products are 0.
    """
    weight = layer.weight.detach()  # [outputs, inputs]
    inputs = weight.shape[1]
    stride = -(-inputs // PACKED_COLUMNS)
    index = torch.arange(turn % stride, inputs, stride)
    units = torch.zeros(len(index), inputs, dtype=weight.dtype)
    units[torch.arange(len(index)), index] = 1
    smallest = torch.finfo(weight.dtype).tiny  # some matrix instructions treat smaller numbers as 0
    return torch.allclose(layer.cpu_linear(units, weight, None), weight[:, index].t(), rtol=0, atol=smallest)


def cached_blocks(llm: Any) -> int:
    """Return the number of reusable blocks in the prefix cache of an engine in this process.

    llm: the engine, a vllm.LLM.
    """
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    return sum(block.block_hash is not None for block in pool.blocks)
